"""What came of a run of faults, as a table and as a picture."""

from pathlib import Path

COLOURS = ["#4e9a51", "#c98a1b", "#7a4ea3", "#3aa0a0", "#a33a5c"]


def table(drills, missing):
    """Prints every fault with what showed it; tells how many were beyond their bound."""
    print("\n| | fault | shown by | accepted meanwhile | completed meanwhile | healed after | bound |")
    print("|---|---|---|---:|---:|---:|---:|")
    rows = [row for drill in drills for row in drill.rows]
    for number, name, shown, took, bound, during in sorted(rows, key=lambda row: int(row[0][1:])):
        print(f"| {number} | {name} | {shown} | {during.accepted} | {during.completed} | {took:.2f} s | {bound:.0f} s |")
    for number, why in missing:
        print(f"| {number} | not run: {why} | | | | | |")
    late = [row for row in rows if row[3] > row[4]]
    print(f"\n{len(rows)} faults, {len(late)} beyond their bound")
    for drill in drills:
        print("\n".join(drill.notes))
    return late


def timeline(drills, path):
    """Of each drill the jobs answered for in each second, the faults, and who led, one below the other, as an SVG."""
    width, height = 1200, 270
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height * len(drills)}" font-family="sans-serif" '
        f'font-size="10"><rect width="{width}" height="{height * len(drills)}" fill="white"/>'
    ]
    for number, drill in enumerate(drills):
        out += [f'<g transform="translate(0 {height * number})">', *panel(drill, width), "</g>"]
    out.append("</svg>")
    Path(path).write_text("\n".join(out))


def panel(drill, width):
    terms = drill.watcher.terms
    end = max([drill.ended, 1.0])

    def x(at):
        return 60 + (width - 80) * at / end

    counts = {}
    for moment, batch in drill.producer.moments:
        second = int(moment - drill.started)
        counts[second] = counts.get(second, 0) + batch
    most = max(counts.values(), default=1)
    out = []
    for number, (begin, until, name) in enumerate(drill.marks):
        out.append(f'<rect x="{x(begin):.1f}" y="40" width="{max(x(until) - x(begin), 1):.1f}" height="160" fill="#f6d5d5"/>')
        out.append(f'<text x="{x(begin):.1f}" y="{16 + 10 * (number % 2)}">{name}</text>')
    points = " ".join(f"{x(second):.1f},{200 - 160 * counts.get(second, 0) / most:.1f}" for second in range(int(end)))
    out.append(f'<polyline fill="none" stroke="#24527a" points="{points}"/>')
    out.append(f'<text x="4" y="44">{most}/s</text><text x="4" y="204">0</text>')
    names = sorted({node.rsplit("-", 1)[0] for _, _, node in terms})
    following = [*terms[1:], (drill.started + end, 0, "")]
    for (moment, term, node), (until, _, _) in zip(terms, following, strict=True):
        left, right = x(moment - drill.started), x(until - drill.started)
        colour = COLOURS[names.index(node.rsplit("-", 1)[0]) % len(COLOURS)]
        out.append(f'<rect x="{left:.1f}" y="215" width="{max(right - left, 1):.1f}" height="14" fill="{colour}"/>')
        out.append(f'<text x="{left:.1f}" y="241">{term}</text>')
    out.append('<text x="4" y="226">leader</text><text x="4" y="241">term</text>')
    out.append(f'<text x="60" y="257">jobs answered for a second, faults (red), leaders by term; {end:.0f} s</text>')
    return out
