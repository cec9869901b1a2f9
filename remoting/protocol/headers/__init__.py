"""Typed ext fields: one dataclass per request or answer header, in files by family.

``PullMessageRequestHeader.from_ext(request.ext)`` reads leniently (numbers and booleans as text or not) and
refuses the request, in RocketMQ's words, when a required field is missing or unreadable; ``to_ext()`` gives
native values that the header codec turns into text where it must. A hot path may read ``ext`` directly.
Fields that every request may carry (bname, ns, AccessKey, ...) are not repeated here. requests/ says which header
belongs to which request.
"""
