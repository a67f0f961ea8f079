"""Writes values.sqlite: values of every serial type, names in every kind of quotes, rows on
overflow pages, a table of several levels, one without row numbers, one altered later."""
import os
import sqlite3

os.path.exists("values.sqlite") and os.remove("values.sqlite")
db = sqlite3.connect("values.sqlite")
db.executescript("""
PRAGMA page_size = 512;
CREATE TABLE kinds ("an id" INTEGER PRIMARY KEY, [v, (w)] ANY, `text` TEXT DEFAULT 'x, )y', -- a comment, with a comma
  /* and , one */ blob BLOB, UNIQUE (text));
CREATE TABLE many (n INT, square INT, CONSTRAINT c CHECK (n >= 0));
CREATE TABLE keyed (k TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE "CHECK" (primary_key INTEGER, y);
""")
for i, v in enumerate([None, 0, 1, -1, 127, -128, 32767, -32768, 8388607, -8388608, 2**31 - 1, -2**31, 2**47 - 1, -2**47,
                       2**63 - 1, -2**63, 0.5, -1e300, "text", "", "ä\U0001d11e", b"\x00\xff"]):
    db.execute("INSERT INTO kinds VALUES (?, ?, ?, ?)", (i - 3, v, "t" * (100 * i), b"b" * (97 * i)))
db.executemany("INSERT INTO many VALUES (?, ?)", ((n, n * n) for n in range(3000)))
db.execute("INSERT INTO keyed VALUES ('k')")
db.execute('INSERT INTO "CHECK" VALUES (1, 2)')
db.execute('ALTER TABLE "CHECK" ADD COLUMN later DEFAULT 5')
db.commit()
