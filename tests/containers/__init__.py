"""The image and the compose files of conf/container: what they name exists, and they run.

compose_files.py   reads a compose file (pure)
machine.py         runs its services as containers in namespaces of this process, without docker
image.py           builds the image from a root file system that mmdebstrap makes
"""
