"""What steps.py prints, computed with whole lists of numbers."""


def lines():
    w = [[(8 * i + k) % 5 - 2 for k in range(8)] for i in range(8)]
    x = [[(8 * t + k) % 3 - 1 for k in range(8)] for t in range(4)]
    cache, out = [], []
    for i in range(8):
        y = [[sum(a * b for a, b in zip(row, col)) for col in w] for row in x]
        cache += y
        for r in range(2):
            mine = slice(4 * r, 4 * r + 4)
            sums = [sum(row[c] for row in cache) for c in range(4 * r, 4 * r + 4)]
            out.append((r, i, i + 1, *(sum(row) for row in y), *sums, *(sum(row[mine]) for row in y)))
        x = [[(a + b) % 7 - 3 for a, b in zip(p, q)] for p, q in zip(x, y)]
    return sorted(" ".join(map(str, line)) for line in out)
