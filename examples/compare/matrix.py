"""Exact dense retrieval with NumPy, for comparison: `matrix.py VECTORS QUERIES DIMENSION`.

Both files hold 32-bit floats, row by row. For each number of passages on standard input, it writes one line: queries per
second one by one, 64 queries in one matrix product, and the latter with the selection of the best passages.
"""

import sys
import time

import numpy as np

TILE = 64
QUERIES = 256


def best(scores, top):
    """The columns of the greatest scores of each row, best first."""
    top = min(top, scores.shape[1])
    columns = np.argpartition(scores, -top, axis=1)[:, -top:]
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1)
    return np.take_along_axis(columns, order, axis=1)


def rate(queries, work):
    begun = time.perf_counter()
    work()
    return queries / (time.perf_counter() - begun)


def main():
    dimension = int(sys.argv[3])
    vectors, queries = (np.fromfile(path, dtype=np.float32).reshape(-1, dimension) for path in sys.argv[1:3])
    queries = queries[:QUERIES]
    few = queries[: max(8, min(len(queries), 20_000_000 // len(vectors)))]
    tiles = [queries[at : at + TILE] for at in range(0, len(queries), TILE)]
    if len(vectors) > 200_000:
        tiles = tiles[:1]
    count = sum(len(tile) for tile in tiles)
    for line in sys.stdin:
        top = int(line)
        one = rate(len(few), lambda: [best((vectors @ query)[None, :], top) for query in few])
        product = rate(count, lambda: [tile @ vectors.T for tile in tiles])
        selected = rate(count, lambda: [best(tile @ vectors.T, top) for tile in tiles])
        print(one, product, selected, flush=True)


if __name__ == "__main__":
    main()
