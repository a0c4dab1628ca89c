"""The identity of data is its content: not its path, not its time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import write_jsonl
from surefit.data import cache_entry
from surefit.data.cache import collect_damage
from surefit.data.cache_entry import content_hashes, file_fingerprint
from surefit.data.cell_files import with_files
from surefit.data.open_data import open_table
from surefit.errors import UsageError

ROWS = [{"text": f"row {n}", "label": n % 2} for n in range(500)]


def keep_time(path: Path, content: bytes) -> None:
    """Change a file, and put its modification time back."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture
def remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are remembered, however young they are."""
    monkeypatch.setattr(cache_entry, "LONG_BYTES", 0)
    monkeypatch.setattr(cache_entry, "SETTLED_NS", -(10**12))
    cache_entry._known.clear()


def test_touch_copy_and_move_keep_the_identity(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    key = open_table(path).key
    os.utime(path)
    assert open_table(path).key == key
    (tmp_path / "other").mkdir()
    copy = shutil.copy(path, tmp_path / "other" / "renamed.jsonl")
    copied = open_table(copy)
    assert copied.key == key
    assert copied.where(3)["file"] == str(copy)  # what is found names the file that was read
    path.unlink()
    shutil.move(copy, path)
    assert open_table(path).key == key


@pytest.mark.usefixtures("remembers")
def test_edit_in_the_middle_with_size_and_time_kept_is_seen(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS * 100)
    content = path.read_bytes()
    key = open_table(path).key
    middle = len(content) // 2
    at = content.index(b"row ", middle)
    keep_time(path, content[:at] + b"sow " + content[at + 4 :])
    changed = open_table(path)
    assert changed.key != key
    assert any(row["text"].startswith("sow") for row in changed.rows())


def test_findings_of_a_copy_name_the_copy(tmp_path: Path) -> None:
    text = "a;b\n" + "1;x\n" * 20
    (tmp_path / "one.csv").write_text(text)
    (tmp_path / "two.csv").write_text(text)
    open_table(tmp_path / "one.csv")
    found = open_table(tmp_path / "two.csv").findings
    assert found
    assert all("one.csv" not in each.message for each in found)


@pytest.mark.usefixtures("remembers")
def test_hash_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    first = file_fingerprint(path)
    cache_entry._known.clear()  # as in another process
    monkeypatch.setattr(cache_entry, "hash_file", lambda path: pytest.fail("read again"))
    assert content_hashes([str(path), str(tmp_path / "nope")]) == [first, None]


def test_a_young_file_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next change may have the same change time."""
    monkeypatch.setattr(cache_entry, "LONG_BYTES", 0)
    monkeypatch.setattr(cache_entry, "SETTLED_NS", 10**15)
    path, hashed = write_jsonl(tmp_path / "rows.jsonl", ROWS), []
    real = cache_entry.hash_file
    monkeypatch.setattr(cache_entry, "hash_file", lambda p: hashed.append(p) or real(p))
    assert file_fingerprint(path) == file_fingerprint(path)
    assert len(hashed) == 2


@pytest.mark.usefixtures("remembers")
def test_damaged_memory_of_hashes_is_not_believed(tmp_path: Path, cache: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    first = file_fingerprint(path)
    for content in (b"", b"[]", b"\0" * 9000, b'["f"]', b"no list"):
        (memory,) = cache.glob(f"hashes/*/{cache_entry.VALUE}")
        memory.write_bytes(content)
        cache_entry._known.clear()
        with collect_damage() as found:
            assert file_fingerprint(path) == first
        assert [each.code for each in found] == ["SF820"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError):
        open_table(tmp_path / "pipe.jsonl")


def save_images(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 255, (4, 4, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.bmp")
    return folder


def test_class_folder_is_its_names_and_contents(tmp_path: Path) -> None:
    folder = save_images(tmp_path / "images")
    key = open_table(folder).key
    shutil.copytree(folder, tmp_path / "copy")
    assert open_table(tmp_path / "copy").key == key
    image = folder / "cat" / "1.bmp"
    content = bytearray(image.read_bytes())
    content[-5] ^= 1
    keep_time(image, bytes(content))
    assert open_table(folder).key != key
    (tmp_path / "copy" / "dog" / "1.bmp").rename(tmp_path / "copy" / "cat" / "9.bmp")
    assert open_table(tmp_path / "copy").key not in (key, open_table(folder).key)


def test_images_named_in_a_column_are_part_of_the_identity(tmp_path: Path) -> None:
    save_images(tmp_path / "images")
    rows = [{"image": f"images/cat/{n}.bmp", "label": n} for n in range(3)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    roles = {"image": "image", "label": "label"}
    key = with_files(open_table(path), roles).key
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    copy = tmp_path.parent / f"{tmp_path.name}-copy"
    assert with_files(open_table(copy / "rows.jsonl"), roles).key == key
    image = tmp_path / "images" / "cat" / "2.bmp"
    content = bytearray(image.read_bytes())
    content[-5] ^= 1
    keep_time(image, bytes(content))
    assert with_files(open_table(path), roles).key != key


def test_names_of_several_files_may_mean_classes(tmp_path: Path) -> None:
    for name, text in {"a.jsonl": "x", "b.jsonl": "y"}.items():
        write_jsonl(tmp_path / name, [{"text": text, "label": text}])
    both = open_table([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]).key
    (tmp_path / "a.jsonl").rename(tmp_path / "c.jsonl")
    assert open_table([tmp_path / "c.jsonl", tmp_path / "b.jsonl"]).key != both
