"""Reads and writes tables with the `lance` package, as somebody would who opens turnflow's data in Python.

    lance_tables.py read DIRECTORY      checks the table that the test has written
    lance_tables.py write DIRECTORY     changes it, and writes others beside it, in each version of the file format
    lance_tables.py again DIRECTORY     checks the first table after the test has changed it once more
    lance_tables.py passages DIRECTORY  checks the stored passages of a corpus
"""

import sys
from pathlib import Path

import lance
import pyarrow as pa

ROWS = 1000


def rows(numbers):
    numbers = list(numbers)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([x for n in numbers for x in (float(n), 1.0)], pa.float32()), 2)
    return pa.table({"id": [f"d{n}" for n in numbers], "vector": vectors})


def ids(table):
    return [int(name[1:]) for name in table["id"].to_pylist()]


def read(place):
    table = lance.dataset(place / "ours.lance")
    expected = [n for n in range(ROWS) if n != 3] + [ROWS, ROWS + 1]
    assert ids(table.to_table()) == expected, "all rows, in their order"
    assert table.count_rows() == len(expected)
    assert table.version == 3, table.version
    found = table.to_table(nearest={"column": "vector", "q": [500.2, 1.0], "k": 3})
    assert ids(found)[0] == 500, found
    assert ids(table.to_table(filter="id = 'd7'")) == [7]
    assert list(table.tags.list()) == ["before"]
    assert len(ids(lance.dataset(place / "ours.lance", version="before").to_table())) == ROWS
    table.validate()


def write(place):
    table = lance.dataset(place / "ours.lance")
    lance.write_dataset(rows([7000, 7001]), place / "ours.lance", mode="append")
    table = lance.dataset(place / "ours.lance")
    table.delete("id IN ('d7000', 'd5')")
    table.optimize.compact_files(target_rows_per_fragment=600)
    table.create_scalar_index("id", "BTREE")
    for version in ["2.0", "2.1", "2.2"]:
        path = place / f"theirs-{version}.lance"
        lance.write_dataset(rows(range(200)), path, data_storage_version=version)
        lance.write_dataset(rows(range(200, 300)), path, mode="append", data_storage_version=version)
        lance.dataset(path).delete("id = 'd250'")
        lance.dataset(path).add_columns({"length": "length(id)"})


def again(place):
    table = lance.dataset(place / "ours.lance")
    expected = [n for n in range(ROWS) if n not in (3, 5, 6)] + [ROWS, ROWS + 1, 7001, 8000]
    assert ids(table.to_table()) == expected
    # The index that was made here knows what has changed since.
    assert ids(table.to_table(filter="id = 'd8000'")) == [8000]
    assert ids(table.to_table(filter="id = 'd6'")) == []
    assert ids(table.to_table(filter="id = 'd7'")) == [7]
    table.validate()
    for version in ["2.0", "2.1", "2.2"]:
        path = place / f"theirs-{version}.lance"
        assert len(ids(lance.dataset(path).to_table())) == 298, version
        lance.dataset(path).validate()


def passages(place):
    table = lance.dataset(place / "state/corpora/docs/passages.lance")
    table.validate()
    texts = {row["id"]: (row["title"], row["text"], row["metadata"]) for row in table.to_table().to_pylist()}
    assert texts == {f"d{n}": (f"Fähre {n}", f"The ferry {n} leaves." * n, f'{{"line":{n}.5}}') for n in range(1, 200)}
    found = table.to_table(columns=["id"], filter="text LIKE '%ferry 7 %' AND NOT removed")
    assert ids(found) == [7]


{"read": read, "write": write, "again": again, "passages": passages}[sys.argv[1]](Path(sys.argv[2]))
