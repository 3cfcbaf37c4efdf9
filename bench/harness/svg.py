"""Grouped bars on a logarithmic scale, as SVG."""

import html
import math

COLOURS = {"baton": "#2d6eb4", "redis": "#c33c3c", "nats": "#46965a", "nats-atomic": "#7db88c", "nats-lanes": "#b5d6bd",
           "nats-default": "#b8b8b8", "limit": "#e19628", "baton on PostgreSQL": "#7fa8d6", "a row per job": "#c08a3e"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 420, 80, 20, 60, 50


def grouped(title, unit, groups):
    """`groups` is a list of (label, [(series, value)]). Returns the text of the picture."""
    values = [value for _, bars in groups for _, value in bars if value and value > 0]
    if not values:
        return None
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values) * 1.01))
    plot_height = HEIGHT - TOP - BOTTOM

    def y_of(value):
        share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return HEIGHT - BOTTOM - share * plot_height

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             text(LEFT, 24, f"{title} ({unit}, logarithmic)", 16, "start")]
    tick = low
    while tick <= high * 1.001:
        y = y_of(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y + 4, f"{tick:,.7g}", 11, "end"))
        tick *= 10
    series = list(dict.fromkeys(name for _, bars in groups for name, _ in bars))
    for index, name in enumerate(series):
        x = LEFT + index * 160
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS.get(name, "#777")}"/>')
        parts.append(text(x + 18, 46, name, 12, "start"))
    slot = (WIDTH - LEFT - RIGHT) / len(groups)
    for index, (label, bars) in enumerate(groups):
        start, bar = LEFT + index * slot + slot * 0.1, slot * 0.8 / max(len(series), 1)
        for name, value in bars:
            if not value or value <= 0:
                continue
            x, y = start + series.index(name) * bar, y_of(value)
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                         f'fill="{COLOURS.get(name, "#777")}"><title>{html.escape(name)}: {value:,.4g}</title></rect>')
        parts.append(text(LEFT + (index + 0.5) * slot, HEIGHT - BOTTOM + 20, label, 11, "middle"))
    parts.append("</svg>\n")
    return "\n".join(parts)


def text(x, y, content, size, anchor):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#333">'
            f"{html.escape(content)}</text>")
