"""Opens turnflow's tables in LanceDB, and searches them.

lancedb_tables.py DIRECTORY
"""

import sys

import lancedb

table = lancedb.connect(sys.argv[1]).open_table("ours")
assert table.count_rows() == 1001, table.count_rows()
found = table.search([500.2, 1.0]).limit(2).to_list()
assert [row["id"] for row in found][0] == "d500", found
assert table.search().where("id = 'd3'").to_list() == []
