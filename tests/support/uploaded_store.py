"""The log of a store directory in a bucket, uploaded by the code that brokers use, without a broker."""

import mmap
from pathlib import Path

from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifests import ManifestLog


def upload_store(bucket: Bucket, directory: Path, broker_set: str, *, also_last: bool = False) -> None:
    """Upload the full files of the log; ``also_last``: of a stopped broker, also the last file, which is not full."""
    paths = sorted((directory / "commitlog").iterdir())
    if not also_last:
        del paths[-1]
    log = ManifestLog(bucket, broker_set)
    manifest = log.claim(0, b"o" * 16, 1, paths[0].stat().st_size)
    for number, path in enumerate(paths):
        before = manifest.segments[-1].index if manifest.segments else None
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size, epoch = len(data), manifest.epoch
            task = UploadTask(broker_set, int(path.name), size, epoch, f"{number}", {}, before, {}, size, [-1])
            manifest = manifest.successor(number + 2).with_segment(upload(bucket, data, task))
        log.append(manifest)
