"""Listings of folders."""

from weince_lightning.folders import files_below


def test_hidden_entries_are_left_out_at_every_depth(tmp_path):
    for name in ("b.json", "a/c.json", ".ipynb_checkpoints/b.json", "a/.b.json", "a/c.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_below(tmp_path, ".json") == [tmp_path / "a/c.json", tmp_path / "b.json"]
