"""Writes rows of nsys stats --report cuda_gpu_trace into a database as nsys export --type
sqlite of Nsight Systems 2025 lays it out (its documentation, "SQLite Schema Reference").

usage: export.py ROWS.txt OUT.sqlite [page size] [copies of all rows] [column to drop]
"""
import re
import sqlite3
import sys

rows, out = sys.argv[1:3]
page = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
copies = int(sys.argv[4]) if len(sys.argv) > 4 else 1
drop = sys.argv[5] if len(sys.argv) > 5 else ""

KERNEL = """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
demangledName INTEGER NOT NULL REFERENCES StringIds(id), shortName INTEGER NOT NULL REFERENCES StringIds(id),
mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER,
fromTheFuture TEXT DEFAULT ('a, (b'), CHECK (end >= start)"""

db = sqlite3.connect(out)
db.execute(f"PRAGMA page_size = {page}")
db.executescript("""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL REFERENCES StringIds(id), returnValue INTEGER NOT NULL,
  callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
""")
db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL})")
if drop:
    db.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN {drop} TO renamed")
columns = [c[1] for c in db.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]

ROW = re.compile(r"^(\d+) (\d+) (\d+) .*\((\d+)\)\s+(\d+)\s+(\d+)\s+(\S.*)$")
names = {}
parsed = [m.groups() for m in map(ROW.match, open(rows)) if m]
period = max(int(r[0]) + int(r[1]) for r in parsed) + 10**6
for copy in range(copies):
    for start, duration, corr, device, context, stream, name in parsed:
        # Names longer than a page, so that they overflow.
        name_id = names.setdefault(name + "<" + "x" * 3000 + ">", len(names) + 7)
        at, pid = int(start) + copy * period, 0x1000000000000 + (100 + int(device) << 24)
        values = dict.fromkeys(columns, 0)
        values.update(start=at, end=at + int(duration), deviceId=int(device), contextId=int(context), greenContextId=None,
                      streamId=int(stream), correlationId=int(corr) + 10000 * copy, globalPid=pid, demangledName=name_id,
                      shortName=name_id, graphNodeId=None, fromTheFuture="?" * (900 if copy == 0 else 3))
        if drop:
            values["renamed"] = values.pop(drop, 0)
        marks = ", ".join("?" * len(columns))
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", [values[c] for c in columns])
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 1, 0, NULL)",
                   (at - 5000, at - 1000, pid + 42, int(corr) + 10000 * copy))
db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, n) for n, i in names.items()])
db.commit()
db.close()
