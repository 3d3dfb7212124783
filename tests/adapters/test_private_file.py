"""The small file that one process leaves for the next."""

import os
from pathlib import Path

import pytest

from outlast.adapters.private_file import PrivateFile
from outlast.domain import errors

pytestmark = pytest.mark.anyio


async def test_it_holds_what_was_written_last_and_only_its_owner_can_read_it(tmp_path: Path):
    path = tmp_path / "note.json"
    file = PrivateFile(path)
    assert await file.read() is None
    path.write_bytes(b"of somebody careless")
    path.chmod(0o644)
    for content in (b"a longer first one", b"second"):
        await file.write(content)
        assert await PrivateFile(path).read() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["note.json"]
    for _ in range(2):
        await file.remove()
    assert await file.read() is None


async def test_what_a_dead_process_left_half_written_is_in_nobodys_way(tmp_path: Path):
    half = tmp_path / f"note.json.{os.getpid()}.new"
    half.write_bytes(b"ha")
    await PrivateFile(tmp_path / "note.json").write(b"whole")
    assert os.listdir(tmp_path) == ["note.json"]


async def test_a_file_that_cannot_be_used_is_a_store_that_is_away(tmp_path: Path):
    for path in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(errors.StoreUnavailable):
            await PrivateFile(path).write(b"x")
    with pytest.raises(errors.StoreUnavailable):
        await PrivateFile(tmp_path).read()
    with pytest.raises(errors.StoreUnavailable):
        await PrivateFile(tmp_path).remove()
    assert os.listdir(tmp_path) == []
