"""The offset that a checkpoint keeps: who wrote it, if it cannot be read."""

from __future__ import annotations

import pytest

from spark_upsert.errors import NewerFormatError, OptionError
from spark_upsert.source.offset import VERSION, Offset


def test_an_offset_of_a_newer_version_asks_for_an_upgrade() -> None:
    record = {**Offset().to_json(), "version": VERSION + 1, "pace": {}}
    with pytest.raises(NewerFormatError, match=f"checkpoint has format {VERSION + 1}") as error:
        Offset.from_json(record)
    assert "upgrade upsertflow" in error.value.hint
    assert "new checkpointLocation" not in str(error.value)


def test_an_offset_of_another_source_is_none_of_ours() -> None:
    with pytest.raises(OptionError, match="no offset of this source"):
        Offset.from_json({"topic": {"0": 12}})
