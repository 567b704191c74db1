"""Hints of paths, of the options of a storage, and of the folder of local copies."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import patch

from spark_upsert.store import object_store
from spark_upsert.store.cache import LocalCopies
from spark_upsert.store.object_store import _ENDPOINT_VARIABLE
from spark_upsert.store.open import open_store
from tests.hints.hint import Told, follows

Place = tuple[str, Mapping[str, Any]]

BUCKET = "s3://bucket/lake"
OPEN = {"endpoint": "http://127.0.0.1:9", "allow_http": "true"}

PLACES: tuple[tuple[str, Place, Mapping[str, Place]], ...] = (
    (
        "store.open:_path_of",
        ("file://tmp/lake", {}),
        {"write file:///tmp/lake for the folder /tmp/lake": ("file:///tmp/lake", {})},
    ),
    (
        "store.settings:ObjectSettings.of",
        (BUCKET, {"region": "eu-west-1", "aws_region": "eu-west-2"}),
        {"keep one of them": (BUCKET, {"region": "eu-west-1"})},
    ),
    (
        "store.object_store:_client",
        (BUCKET, {"region": "eu-west-1", "skip_signature": "perhaps"}),
        {
            "docs/object-stores.md lists the options of each cloud": (
                BUCKET,
                {"region": "eu-west-1"},
            )
        },
    ),
    (
        "store.settings:cloud_of",
        ("http://127.0.0.1:9/bucket", {}),
        {
            "/lake/orders or file:///lake/orders": ("file:///lake/orders", {}),
            "s3://": (BUCKET, {}),
            "The address of a server goes into 'storage.endpoint'": (BUCKET, OPEN),
        },
    ),
    (
        "store.settings:cloud_of:2",
        ("s3:///orders", {}),
        {"give it as s3://bucket/folder": ("s3://bucket/folder", {})},
    ),
    (
        "store.settings:cloud_of:3",
        ("s3://bucket//orders", {}),
        {"write s3://bucket/folder/table": ("s3://bucket/folder/table", {})},
    ),
    (
        "store.settings:cloud_of:4",
        ("s3://bucket:9/orders", {}),
        {"credentials and the address of a server go into 'storage' options": (BUCKET, OPEN)},
    ),
    (
        "errors:require_plain",
        ("s3://me:hush@bucket/orders", {}),
        {
            "give credentials and the address of a server in 'storage' options": (
                BUCKET,
                {"access_key_id": "me", "secret_access_key": "hush", **OPEN},
            )
        },
    ),
    (
        "errors:require_plain:2",
        ("file:///lake/a?b", {}),
        {"leave it away": ("file:///lake/a", {}), "write %3F for '?'": ("file:///lake/a%3Fb", {})},
    ),
    (
        "errors:require_plain:2",
        ("abfss://box@account.dfs.core.windows.net/lake?sig=hush", {}),
        {
            "A signature (SAS) goes into 'storage.sas_key'": (
                "abfss://box@account.dfs.core.windows.net/lake",
                {"sas_key": "sv=2026&sig=aHVzaA%3D%3D"},
            )
        },
    ),
    (
        "store.settings:_require_allow_http",
        (BUCKET, {"endpoint": "http://127.0.0.1:9"}),
        {
            "give an https:// address": (BUCKET, {"endpoint": "https://127.0.0.1:9"}),
            "set 'storage.allow_http' to 'true'": (BUCKET, OPEN),
        },
    ),
)


def of_place(site: str, wrong: Place, advice: Mapping[str, Place]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            open_store(*wrong)
        for quoted, place in advice.items():
            told(quoted)
            open_store(*place)


for _site, _wrong, _advice in PLACES:
    of_place(_site, _wrong, _advice)


@follows("store.object_store:_refuse_other_endpoint")
def _(told: Told) -> None:
    with patch.dict(os.environ, {_ENDPOINT_VARIABLE: "http://127.0.0.1:8"}):
        with told:
            open_store(BUCKET, OPEN)
        told("leave 'storage.endpoint' away")
        open_store(BUCKET, {"allow_http": "true"})
    told(f"unset {_ENDPOINT_VARIABLE}")
    open_store(BUCKET, OPEN)


@follows("store.cache:LocalCopies.folder")
def _(told: Told) -> None:
    (told.folder / f"upsertflow-cache-{os.getuid()}").symlink_to(told.folder)
    with told:
        LocalCopies(told.folder).folder()
    told("set 'storage.cache_dir' to a folder of your own on a local disk")
    assert LocalCopies(told.folder / "own").folder().is_dir()


@follows("store.cache:usable")
def _(told: Told) -> None:
    (told.folder / "file").write_bytes(b"")
    with told:
        LocalCopies(told.folder / "file").folder()
    told("set 'storage.cache_dir' to a folder on a local disk")
    assert LocalCopies(told.folder / "copies").folder().is_dir()


@follows("store.object_store:_refuse_after_fork")
def _(told: Told) -> None:
    with patch.object(object_store, "_runtime_process", os.getpid() + 1), told:
        open_store(BUCKET, OPEN).read("a")
    for method in ("spawn", "forkserver"):
        told(f"'{method}'")
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            pool.submit(object_store._refuse_after_fork).result()
