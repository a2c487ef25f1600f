"""Atomic replacement of files, drafts of killed processes, and kernel locks."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wflow import InputError
from wflow._core import files, memory


def broken(draft):
    draft.write_text("half")
    raise RuntimeError("disk full")


@pytest.mark.parametrize("writer", [broken, Path.unlink])
def test_a_writer_that_fails_leaves_the_earlier_file_and_no_draft(writer, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("first")
    with pytest.raises((RuntimeError, FileNotFoundError)):
        files.replace_file(path, writer)
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_is_seen_by_others_only_when_it_is_whole(tmp_path):
    path, seen = tmp_path / "a.txt", []

    def writer(draft):
        draft.write_text("half")
        seen.append(path.exists())
        draft.write_text("whole")

    files.replace_file(path, writer)
    assert seen == [False] and path.read_text() == "whole"


def test_drafts_are_removed_by_the_names_of_their_files_and_nothing_else(tmp_path):
    left = [files.draft_of(tmp_path / "a.h5"), tmp_path / "a.h5.0123abcd.new"]
    kept = [files.draft_of(tmp_path / "b.h5"), tmp_path / "axh5.0123abcd.new"]
    kept += [tmp_path / f"a.h5{end}" for end in (".new", ".0123abcdef.new", "")]
    for file in (*left, *kept):
        file.write_text("")
    link = files.draft_of(tmp_path / "a.h5")
    link.symlink_to(kept[0])
    files.remove_drafts(tmp_path, ["a.h5", "c.h5"])
    assert set(tmp_path.iterdir()) == {*kept, link}


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_lock_keeps_others_out_until_its_process_ends(tmp_path):
    program = (
        "import os, sys; from wflow._core.files import take_lock\n"
        f"assert take_lock(os.open({str(tmp_path)!r}, os.O_RDONLY))\n"
        "print('taken', flush=True); sys.stdin.read()"
    )
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None and other.stdout.readline() == b"taken\n"
            assert not files.take_lock(number)
            other.kill()
        assert files.take_lock(number)
    finally:
        os.close(number)


def test_only_regular_files_are_opened(tmp_path):
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    file.write_bytes(b"words")
    os.mkfifo(fifo)
    with files.opened(file, "words") as found:
        assert found.read() == b"words"
    cases = {fifo: "is a fifo", tmp_path: "is a directory", tmp_path / "x": "does not exist"}
    for path, reason in cases.items():
        with pytest.raises(InputError, match=f"{path} {reason}.*expected words"):
            files.opened(path, "words").__enter__()


def test_an_archive_stores_the_bytes_that_it_claims(tmp_path):
    def checked(kind, count):
        """Check an archive of so many names, all of which stand for the same bytes."""
        with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
            archive.writestr("x", bytes(1000))
            archive.filelist *= count
        with open(tmp_path / "a.zip", "rb") as file:
            files.check_zip(file, "a.zip")
            assert file.tell() == 0

    checked(zipfile.ZIP_STORED, 1)
    with pytest.raises(InputError, match="packed"):
        checked(zipfile.ZIP_DEFLATED, 1)
    with pytest.raises(InputError, match=r"claims .*3,000") as caught:
        checked(zipfile.ZIP_STORED, 3)
    assert "packed" not in str(caught.value)


def test_a_file_is_read_where_memory_has_room_for_it(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("[1, 2]" + " " * 2**21)
    with open(path, "rb") as file:
        assert files.read_json(file, path) == [1, 2]
        file.seek(0)
        assert len(files.read_whole(file, path)) == path.stat().st_size
        monkeypatch.setattr(memory, "free_memory", lambda: 2e6)
        for read in (files.read_json, files.read_whole):
            file.seek(0)
            with pytest.raises(InputError, match=r"a\.json"):
                read(file, path)
    with open(path, "r+b") as file:
        with pytest.raises(InputError, match=r"a\.json"):
            files.read_json(file, path, most=2**21)
        file.truncate(2**27)
        with pytest.raises(InputError, match=r"a\.json"):
            files.read_json(file, path)
