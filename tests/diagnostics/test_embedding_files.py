"""Files of embeddings as people keep them: every format, and whatever lies beside the rows."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from weince_lightning.diagnostics.embedding_files import (
    holds_embeddings,
    open_source,
    read_embeddings,
)
from weince_lightning.diagnostics.embeddings import Embeddings, take_census

PATHS = np.array([f"b/{i}, {i}.png" for i in range(20)])
LABELS = np.array([*range(19), -1])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((20, 12)).astype(np.float32)


def read(name, **options):
    opened = open_source(Path(name))
    assert holds_embeddings(opened)
    return read_embeddings(opened, "views", **options)


def write_text(name, lines, encoding="utf-8"):
    Path(name).write_text("\n".join(lines) + "\n", encoding=encoding)


def write_parquet(name, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), name)


def save_all(rows):
    """One set of rows with labels in every format; columns and names as ``weince embed`` has."""
    pyarrow = pytest.importorskip("pyarrow")
    safetensors = pytest.importorskip("safetensors.torch")
    tensor, labels = torch.from_numpy(rows), torch.from_numpy(LABELS)
    objects = np.array([{"path": path} for path in PATHS], dtype=object)
    np.savez("embed.npz", features=rows, paths=PATHS, labels=LABELS)
    np.savez("objects.npz", paths=objects, rows=rows, labels=LABELS.astype(">i4"), step=3)
    torch.save({"features": tensor, "labels": labels, "paths": [*PATHS], "epoch": 3}, "dict.pt")
    torch.save({"rows": rows, "labels": LABELS.tolist(), "mean": rows.mean(0)}, "numpy.pth")
    torch.save(
        {"rows": tensor, "labels": labels, "what": {"of": "it"}, "embeddings": tensor}, "n.pt"
    )
    safetensors.save_file({"rows": tensor, "labels": labels}, "a.safetensors")
    header = ",".join(["path", "label", *map(str, range(12))])
    cells = [
        [f'"{PATHS[i]}"', str(LABELS[i]), *map(repr, row.tolist())] for i, row in enumerate(rows)
    ]
    write_text("embed.csv", [header, *(",".join(each) for each in cells)])
    head = ";".join(["", *(f"f{i}" for i in range(12)), "label"])
    lines = [";".join([str(i), *each[2:], each[1]]) for i, each in enumerate(cells)]
    write_text("pandas.csv", [head, *lines], "utf-8-sig")
    features = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), 12)
    write_parquet("embed.parquet", path=PATHS, label=LABELS, features=features)
    write_parquet(
        "lists.parquet", embedding=[row.tolist() for row in rows], width=LABELS, label=LABELS
    )
    return sorted(path.name for path in Path().iterdir())


def test_rows_and_labels_are_found_in_every_format_whatever_lies_beside_them(rows):
    for name in save_all(rows):
        found = read(name)
        assert np.allclose(np.asarray(found.first, dtype=np.float32), rows), name
        assert np.asarray(found.ids).tolist() == LABELS.tolist(), name
        assert found.second is None


def test_tables_without_names_or_with_classes_in_words_are_read(rows):
    plain = [",".join(map(repr, row.tolist())) for row in rows]
    write_text("plain.csv", plain)
    write_text("numbered.csv", [",".join(map(str, range(12))), *plain])
    write_text("words.csv", ["x,y,label", *(f"{row[0]},{row[1]},{'' if i else 'cat'}"
                                            for i, row in enumerate(rows))])  # fmt: skip
    assert np.allclose(read("plain.csv").first, rows)
    assert np.allclose(read("numbered.csv").first, rows)
    write_text("paths.csv", [f"{i}.png,{line}" for i, line in enumerate(plain)])
    assert np.allclose(read("paths.csv").first, rows)
    words = read("words.csv")
    assert np.allclose(words.first, rows[:, :2])
    assert words.ids.tolist() == [1, *[-1] * 19]


@pytest.mark.parametrize("kind", ["<f2", ">f2", ">f4", ">f8"])
def test_half_precision_and_the_other_byte_order_are_numbers(rows, kind):
    np.save("a.npy", rows.astype(kind))
    np.savez("a.npz", first=rows.astype(kind), second=rows[::-1].astype(kind))
    np.savez("b.npz", rows.astype(kind), LABELS.astype(">i8"))
    assert read("a.npy").first.dtype == np.dtype(kind)
    assert read("a.npz").second is not None
    found = read("b.npz")
    assert found.ids.tolist() == LABELS.tolist()
    assert take_census(found).num_distinct == 20


def test_unknown_labels_are_all_different(rows):
    ids = np.array([-1] * 10 + [3] * 10)
    for given in (ids, torch.from_numpy(ids), ids.astype(">i2")):
        labels = take_census(Embeddings(rows, ids=given)).labels
        assert len(labels[:10].unique()) == 10
        assert len(labels.unique()) == 11
    rows[1] = rows[0]
    assert take_census(Embeddings(rows, ids=ids)).num_duplicates == 1


def test_of_several_arrays_one_is_chosen_by_its_name(rows):
    np.savez("splits.npz", train=rows, test=rows[:9], labels=LABELS[:9])
    with pytest.raises(ValueError, match=r"got train, test, labels\. Choose by --key test, or"):
        read("splits.npz")
    found = read("splits.npz", key="test")
    assert np.array_equal(found.first, rows[:9])
    assert found.ids.tolist() == LABELS[:9].tolist()
    with pytest.raises(ValueError, match=r'must hold tests, got train.*Did you mean "test"\?$'):
        read("splits.npz", key="tests")
    with pytest.raises(ValueError, match=r"ids must hold one number .* --ids none passes over"):
        read("splits.npz", key="train")
    assert read("splits.npz", key="train", ids=Path("none")).ids is None


def test_other_files_may_hold_more_than_was_asked_for(rows):
    np.save("x.npy", rows)
    np.savez("y.npz", paths=PATHS.astype(object), rows=rows[::-1], labels=LABELS)
    write_text("ids.csv", ["path,label", *(f"{i},{i // 2}" for i in range(20))])
    found = read("x.npy", positives=Path("y.npz"), ids=Path("ids.csv"))
    assert np.array_equal(found.second, rows[::-1])
    assert found.ids.tolist() == [i // 2 for i in range(20)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "must hold a table, got an empty file."),
        (["a,b", "1,2", "3"], "must have 2 cells in every line, got 1 in row 1."),
        (["a,b", "1,2", "3,x"], "must hold numbers in the column b, got 'x' in row 1."),
        (["path", "a.png"], "must hold an array of embeddings, best named embeddings, got none."),
    ],
)
def test_a_table_that_cannot_be_used_is_named(lines, message):
    Path("a.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"a.csv {message}")):
        read("a.csv")


def test_a_damaged_or_ragged_parquet_file_is_named(rows):
    write_parquet("ragged.parquet", features=[[1.0, 2.0], [1.0]])
    with pytest.raises(ValueError, match="must hold lists of one length in features, got lengths"):
        read("ragged.parquet")
    Path("cut.parquet").write_bytes(Path("ragged.parquet").read_bytes()[:50])
    with pytest.raises(ValueError, match=r"cut.parquet \(50 bytes\) must be a whole Parquet file"):
        read("cut.parquet")


def test_a_library_that_is_not_there_is_named_with_the_line_that_installs_it(monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    Path("a.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ImportError, match=r"needs pyarrow: pip install weince-lightning\[parquet\]$"
    ):
        read("a.parquet")
