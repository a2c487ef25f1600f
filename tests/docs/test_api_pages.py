"""The pages of the API reference: one for every public name."""

import importlib
import re
from pathlib import Path

import pytest

import wflow

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("sphinx", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def api():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        yield importlib.import_module("api_pages")


@pytest.fixture(scope="module")
def pages(api, tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    api.write(folder)
    return folder


def test_every_name_in_all_of_the_root_is_a_page_or_a_room(api):
    known = {name.path for name in api.names()} | set(api.rooms())
    missing = [name for name in wflow.__all__ if f"wflow.{name}" not in known]
    assert all(name == "nets" for name in missing)  # where torch is not installed
    assert {"wflow.solve", "wflow.heads.OrnsteinUhlenbeck", "wflow.jko.step"} <= known


def test_every_class_and_function_has_a_page_and_every_constant_a_place(api, pages):
    listed = api.names()
    for name in listed:
        room = (pages / f"{name.room}.rst").read_text(encoding="utf-8")
        if name.kind == "data":
            assert f".. py:data:: {name.name}\n" in room
        else:
            file = api.page_name(name, listed)
            page = (pages / f"{file}.rst").read_text(encoding="utf-8")
            assert page.startswith(f"{name.path}\n====")
            assert re.search(rf"^   {re.escape(file)}$", room, re.MULTILINE)


def test_no_two_pages_have_names_that_differ_by_case_alone(pages):
    names = [page.stem.lower() for page in pages.iterdir()]
    assert len(names) == len(set(names))


def test_every_room_is_listed_with_what_is_in_it(api, pages):
    index = (pages / "index.rst").read_text(encoding="utf-8")
    for room in api.rooms():
        if room.count(".") <= 1:
            assert f":doc:`{room} <{room}>`" in index


def test_a_second_name_of_an_object_points_to_the_first(pages):
    page = (pages / "wflow.flows.Flow.rst").read_text(encoding="utf-8")
    assert "The same as :class:`wflow.Flow`." in page


def test_a_class_shows_the_methods_that_it_inherits_within_wflow(api):
    assert {"drift", "check", "to_config"} <= set(api.members(wflow.heads.OrnsteinUhlenbeck))


def test_pages_of_names_that_are_gone_are_removed_and_others_not_touched(api, pages):
    (pages / "wflow.gone.rst").write_text("old", encoding="utf-8")
    before = (pages / "wflow.solve.rst").stat().st_mtime_ns
    api.write(pages)
    assert not (pages / "wflow.gone.rst").exists()
    assert (pages / "wflow.solve.rst").stat().st_mtime_ns == before
