"""YAML files: encodings, keys given twice, blanks, and errors with file, line and mend."""

import codecs

import pytest

from weince_lightning.yaml_files import YAMLFileError, load, load_settings, read_text

TEXT = "# Größe\nmodel:\n  learning_rate: 0.1\n"


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-32"),
    ],
)
def test_a_byte_order_mark_names_the_encoding(tmp_path, content):
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    assert read_text(path) == TEXT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            TEXT.encode("latin-1"),
            r"my.yaml, line 1: .* UTF-8, got the byte 0xf6. Save the file as UTF-8.",
        ),
        (codecs.BOM_UTF16_LE + b"abc", r"my.yaml, line 1: .* UTF-16, .* Save the file as UTF-8."),
        (TEXT.encode("utf-16-le"), r"my.yaml, line 1: .* Save the file as UTF-8."),
    ],
)
def test_text_in_another_encoding_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    with pytest.raises(YAMLFileError, match=message) as refusal:
        load(read_text(path), path)
    assert "\n" not in str(refusal.value)


def test_what_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(YAMLFileError, match="must be a file that can be read: Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n\tc: 1", r"my.yaml, line 3, column 1: .* Indent with spaces, not with tabs."),
        ("a: 1\nb: c: d", r"my.yaml, line 2, column 5: .* quote a value with ': '."),
        ("a: 1\nb\nc: 2", r"my.yaml, line 3, column 1: .* Write each setting as key: value."),
        ("a: [1, 2\nb: 3", r"my.yaml, line 2, column 2: this is no YAML"),
        ("a: 1\n---\nb: 2", r"my.yaml, line 2, column 1: .* into a file of its own."),
        ("a: *b", r"my.yaml, line 1, column 4: .* Quote a value that begins with '\*'."),
        ("a: !b 1", r"my.yaml, line 1, column 4: .* Quote a value that begins with '!'."),
        ("a: 2026-13-01", r"my.yaml: this is no YAML: month must be in 1..12"),
        ("a: 1\nb: 2\na: 3", r"my.yaml, line 1: 'a' is given twice, again in line 3. Leave one."),
        ("a:\n  b: 1\n  'b': 2", r"my.yaml, line 2: 'b' is given twice, again in line 3."),
        ("a: [{b: 1, b: 2}]", r"my.yaml, line 1: 'b' is given twice, again in line 1."),
        ("a: &x\n  b: *x", r"my.yaml, line 1, column 4: an anchor must not contain its own alias."),
    ],
)
def test_an_error_names_file_line_and_mend(text, message):
    with pytest.raises(YAMLFileError, match=message) as refusal:
        load_settings(text, "my.yaml")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "my.yaml must hold settings, .* got an empty file."),
        ("# model: 1", "my.yaml must hold settings, .* got nothing but comments."),
        ("- a: 1", "my.yaml must hold settings, .* got a list."),
        ("digits", "my.yaml must hold settings, .* got 'digits'."),
        ("1: 2", "my.yaml, line 1: keys must be words, got 1."),
    ],
)
def test_what_holds_no_settings_is_refused_by_name(text, message):
    with pytest.raises(YAMLFileError, match=message):
        load_settings(text, "my.yaml")


def test_a_blank_sets_nothing_and_null_is_a_value():
    text = "trainer:\n#  max_epochs: 3\nmodel:\n  loss:\n  backbone: null\n  size: ~\nlist: [null]"
    content, _ = load_settings(text, "my.yaml")
    assert content == {"model": {"backbone": None, "size": None}, "list": [None]}
    assert load("a:", "my.yaml") == {"a": None}  # where a section without keys has a meaning


def test_every_setting_has_its_line():
    text = "a: 1\nb:\n  c:\n    - d: 2\n    - e: 3\n"
    assert load_settings(text, "my.yaml")[1] == {
        "a": 1,
        "b": 2,
        "b.c": 3,
        "b.c.0.d": 4,
        "b.c.1.e": 5,
    }


def test_a_merged_mapping_may_be_overridden():
    content, _ = load_settings("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}", "my.yaml")
    assert content["d"] == {"b": 1, "c": 3}
