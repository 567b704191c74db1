"""What the operating system refuses becomes an error that says what to do."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from spark_upsert.errors import OptionError, StorageError, TableNotFoundError
from spark_upsert.store import local
from spark_upsert.store.local import LocalStore
from spark_upsert.store.object_store import ObjectStore
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from tests.support.calls import raising

COLUMNS = pa.schema({"k": pa.int64()})
ROWS = pa.table({"k": [1]})


class Refusing:
    """The module ``os``, one of whose calls is refused."""

    def __init__(self, call: str, number: int) -> None:
        self._call = call
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name == self._call else getattr(os, name)

    def _refuse(self, *args: Any, **how: Any) -> None:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "the right to write"),
        (errno.EROFS, "the right to write"),
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EIO, "check the disk"),
    ],
    ids=["no permission", "a read-only file system", "a full disk", "a quota", "a broken disk"],
)
def test_a_write_that_the_system_refuses(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, keys=["k"])
    with monkeypatch.context() as patched:
        patched.setattr(local, "os", Refusing("fsync", number))
        with pytest.raises(StorageError) as caught:
            table.upsert(ROWS)
    assert str(tmp_path / "table") in caught.value.message
    assert os.strerror(number) in caught.value.message
    assert advice in caught.value.hint
    assert caught.value.fields["errno"] == number
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    table.upsert(ROWS)
    assert table.snapshot().num_rows == 1


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "os", Refusing("link", number))
    with pytest.raises(StorageError, match="hard link") as caught:
        Table.create(str(tmp_path), COLUMNS, keys=["k"])
    assert "object storage" in caught.value.hint
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"\[STORAGE\] .*file") as caught:
        Table.create(str(tmp_path / "file" / "table"), COLUMNS, keys=["k"])
    assert "a folder" in caught.value.hint
    with pytest.raises(StorageError, match="too long"):
        Table.create(str(tmp_path / ("x" * 300)), COLUMNS, keys=["k"])
    with pytest.raises(TableNotFoundError):
        Table.open(str(tmp_path / "none"))


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "os", Refusing("listdir", errno.EACCES))
    with pytest.raises(StorageError, match="could not list"):
        list(LocalStore(tmp_path).list("data"))


def test_an_upload_that_does_not_fit_into_the_cache_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore("s3://b/t", {"cache_dir": str(tmp_path)}, client=MemoryStore())
    sink = store.create("data/a")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(sink._file, "write", raising(full))
    with pytest.raises(OptionError, match="No space left") as caught:
        sink.write(b"too much")
    assert "storage.cache_dir" in caught.value.hint
    sink._file.close()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hdfs://namenode:8020/lake", "'hdfs://', which is not supported"),
        ("hdfs:/lake", "'hdfs:/', which is not supported"),
        ("dbfs:/lake", "'dbfs:/', which is not supported"),
        ("https://host/lake", "'https://', which is not supported"),
        ("memory:///table", "'memory://', which is not supported"),
        ("s3:/bucket/lake", "names no bucket"),
        ("s3:///table", "names no bucket"),
        ("s3://bucket//table", "has a '/' too many"),
        ("file://lake/orders", "host 'lake'"),
        ("file:///lake/orders?mode=hush", "'file:///lake/orders?***' has a query"),
        ("file:///lake/orders#hush", "'file:///lake/orders#***' has a query or fragment"),
        ("s3://bucket/lake?versionId=7", "'s3://bucket/lake?***'"),
        ("s3://key:hush@bucket/lake", "credentials"),
        ("az://container/lake?sv=2024&sig=hush%3D", "query"),
        ("/lake/\0", "null"),
    ],
)
def test_a_path_that_is_not_supported_is_refused(path: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_store(path)
    assert words in caught.value.message
    assert caught.value.hint
    assert "hush" not in str(caught.value)
    if "not supported" in words:
        assert {"s3://", "gs://", "az://", "abfss://"} < {*re.findall(r"\w+://", caught.value.hint)}


def test_a_file_url_is_a_path() -> None:
    for path in ("/lake/a b", "file:/lake/a%20b", "file:///lake/a b", "file://localhost/lake/a b"):
        store = open_store(path)
        assert isinstance(store, LocalStore)
        assert store.url == "/lake/a b"


_WITHOUT_OBSTORE = """
import sys
sys.modules["obstore"] = None
from spark_upsert.errors import OptionError, StorageError
from spark_upsert.store.open import open_store
for path, words in (("hdfs://a/b", "not supported"), ("s3://a/b", "needs obstore")):
    try:
        open_store(path)
    except OptionError as error:
        assert words in str(error), error
    else:
        raise AssertionError(path)
"""


def test_nothing_but_a_bucket_needs_obstore() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_OBSTORE], check=True)
