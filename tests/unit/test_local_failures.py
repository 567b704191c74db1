"""What the operating system refuses becomes an error that says what to do."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError, StorageError, TableNotFoundError
from spark_upsert.store import local
from spark_upsert.store.local import LocalStore
from spark_upsert.store.object_store import ObjectStore
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from spark_upsert.table.write.stash import Stash
from tests.support.model import Command
from tests.support.tables import batch_of, schema_of

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
        pytest.param(errno.EACCES, "the right to write", id="no permission"),
        pytest.param(errno.EROFS, "the right to write", id="a read-only file system"),
        pytest.param(errno.ENOSPC, "make room", id="a full disk"),
        pytest.param(errno.EDQUOT, "make room", id="a quota"),
        pytest.param(errno.EIO, "check the disk", id="a broken disk"),
    ],
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


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"\[STORAGE\] .*file") as caught:
        Table.create(str(tmp_path / "file" / "table"), COLUMNS, keys=["k"])
    assert "a folder" in caught.value.hint


def test_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        Table.create(str(tmp_path / ("x" * 300)), COLUMNS, keys=["k"])


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "os", Refusing("listdir", errno.EACCES))
    with pytest.raises(StorageError, match="could not list"):
        list(LocalStore(tmp_path).list("data"))


def test_a_folder_for_spilled_rows_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    schema = schema_of(Scope.TABLE)

    def spill() -> None:
        with Stash(schema, settle_bytes=1, spill_bytes=1) as stash:
            for key in range(9):
                stash.add(batch_of(schema, [Command(key, key)]))

    with pytest.raises(StorageError, match=r"could not make a folder in .*none"):
        spill()


def test_an_upload_that_does_not_fit_into_the_cache_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore("s3://b/t", {"cache_dir": str(tmp_path)}, client=MemoryStore())
    sink = store.create("data/a")

    def full(data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sink._file, "write", full)
    with pytest.raises(OptionError, match="No space left") as caught:
        sink.write(b"too much")
    assert "storage.cache_dir" in caught.value.hint
    sink._file.close()


def test_a_table_that_is_not_there_stays_not_found(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        Table.open(str(tmp_path / "none"))


# -- paths ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hdfs://namenode:8020/lake", "'hdfs://', which is not supported"),
        ("hdfs:/lake", "'hdfs:/', which is not supported"),
        ("dbfs:/lake", "'dbfs:/', which is not supported"),
        ("https://host/lake", "'https://', which is not supported"),
        ("s3:/bucket/lake", "names no bucket"),
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


def test_what_is_supported_instead_is_said() -> None:
    with pytest.raises(OptionError) as caught:
        open_store("hdfs://namenode/lake")
    for scheme in ("s3://", "gs://", "az://", "abfss://"):
        assert scheme in caught.value.hint


@pytest.mark.parametrize("path", ["file:/lake/a", "file:///lake/a", "file://localhost/lake/a"])
def test_a_file_url_is_a_path(path: str) -> None:
    assert open_store(path).url == "/lake/a"


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
