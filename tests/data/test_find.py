"""Finding image files."""

from pathlib import Path

import pytest

from vqlab.data import find_images
from vqlab.errors import VqlabError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.png", "a/2.JPG", "a/10.jpeg", "a/deep/er/x.webp", "notes.txt", ".hidden.png", ".git/y.png", "c.tiff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_all_images_below_a_folder_sorted(tree: Path) -> None:
    names = [path.relative_to(tree).as_posix() for path in find_images(tree)]
    assert names == ["a/10.jpeg", "a/2.JPG", "a/deep/er/x.webp", "b.png", "c.tiff"]
    assert find_images(str(tree)) == find_images(tree)


def test_links_are_followed_and_loops_end(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "z.png").touch()
    (tree / "link").symlink_to(other)
    (tree / "a" / "loop").symlink_to(tree)
    names = [path.name for path in find_images(tree)]
    assert sorted(names) == ["10.jpeg", "2.JPG", "b.png", "c.tiff", "x.webp", "z.png"]


def test_a_list_keeps_its_order(tree: Path) -> None:
    (tree / "list.txt").write_text("b.png\n\n# a comment\na/2.JPG\n")
    assert find_images(tree / "list.txt") == [tree / "b.png", tree / "a/2.JPG"]


def test_one_file(tree: Path) -> None:
    assert find_images(tree / "b.png") == [tree / "b.png"]


@pytest.mark.parametrize("name", ["missing", "notes.md", "empty", "empty.txt"])
def test_nothing_to_find_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").touch()
    (tmp_path / "empty.txt").touch()
    with pytest.raises(VqlabError, match=name):
        find_images(tmp_path / name)
