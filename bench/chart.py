"""Figures of measurements as SVG files: bars of parts, and lines through points, with whiskers from
the least to the most. Standard library only; it measures nothing."""

import math

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 520, 90, 110, 70


def ticks(highest):
    """Round values from 0 to at least `highest`, five or so."""
    step = 10 ** math.floor(math.log10(highest / 4 or 1))
    step *= next(k for k in (1, 2, 2.5, 5, 10) if highest / (k * step) <= 5)
    return [step * i for i in range(math.ceil(highest / step) + 1)]


def short(number):
    """Short enough to stand beside others below an axis."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if number >= unit and number % unit == 0:
            return f"{number / unit:g}{name}"
    return f"{number:g}"


class Frame:
    """Title, legend and axis of values, from 0 or logarithmic."""

    def __init__(self, title, y_name, names, lowest, highest, log=False):
        self.log = log
        self.ticks = (
            [
                10.0**k
                for k in range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
            ]
            if log
            else ticks(highest)
        )
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="14">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            self.text(WIDTH / 2, 30, title, 'font-size="18" text-anchor="middle"'),
            self.text(
                22,
                (TOP + HEIGHT - BOTTOM) / 2,
                y_name,
                f'text-anchor="middle" transform="rotate(-90 22 {(TOP + HEIGHT - BOTTOM) / 2})"',
            ),
        ]
        for value in self.ticks:
            y = self.y(value)
            self.parts += [
                f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
                self.text(LEFT - 8, y + 5, f"{value:g}", 'text-anchor="end"'),
            ]
        for i, name in enumerate(names):
            x, y = LEFT + 10 + i % 4 * 195, 62 + i // 4 * 22
            self.parts += [
                f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{COLOURS[i % 8]}"/>',
                self.text(x + 18, y, name),
            ]

    @staticmethod
    def text(x, y, words, more=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'

    def y(self, value):
        scale = (lambda v: math.log10(v)) if self.log else (lambda v: v)
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (scale(value) - low) / (high - low)

    def whisker(self, x, spread, colour):
        low, high = self.y(spread["least"]), self.y(spread["most"])
        ends = "".join(f"M{x - 4:.1f} {y:.1f}H{x + 4:.1f}" for y in (low, high))
        self.parts.append(
            f'<path d="M{x:.1f} {low:.1f}V{high:.1f}{ends}" stroke="{colour}" fill="none"/>'
        )

    def dot(self, x, spread, colour):
        y = self.y(spread["median"])
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')

    def write(self, path):
        path.write_text("\n".join(self.parts) + "</svg>\n")


def bars(path, title, y_name, names, columns):
    """Columns of (label, the parts' values, spread of the whole). False when there is none."""
    if not columns:
        return False
    frame = Frame(
        title,
        y_name,
        names,
        0,
        max(max(sum(values), total["most"]) for _, values, total in columns),
    )
    step = (WIDTH - LEFT - 40) / len(columns)
    for i, (label, values, total) in enumerate(columns):
        x, below = LEFT + 20 + i * step, 0
        for k, value in enumerate(values):
            top, bottom = frame.y(below + value), frame.y(below)
            frame.parts.append(
                f'<rect x="{x + step * 0.15:.1f}" y="{top:.1f}" width="{step * 0.6:.1f}" height="{bottom - top:.1f}" fill="{COLOURS[k % 8]}"/>'
            )
            below += value
        frame.whisker(x + step * 0.82, total, "black")
        frame.parts.append(
            frame.text(x + step / 2, HEIGHT - BOTTOM + 22, label, 'text-anchor="middle"')
        )
    frame.write(path)
    return True


def chart(path, title, x_name, y_name, series, log=False):
    """Lines through (x, spread); with `log` both axes are logarithmic. False when there is none."""
    series = [(name, line) for name, line in series if line]
    points = [p for _, line in series for p in line]
    if not points:
        return False
    frame = Frame(
        title,
        y_name,
        [name for name, _ in series],
        min(s["least"] for _, s in points),
        max(s["most"] for _, s in points),
        log,
    )
    frame.parts.append(frame.text((LEFT + WIDTH) / 2, HEIGHT - 20, x_name, 'text-anchor="middle"'))
    scale = math.log10 if log else float
    first, last = scale(min(x for x, _ in points)), scale(max(x for x, _ in points))
    at_x = lambda x: LEFT + 50 + (WIDTH - LEFT - 130) * (scale(x) - first) / (last - first or 1)  # noqa: E731
    for x in sorted({x for x, _ in points}):
        frame.parts.append(
            frame.text(at_x(x), HEIGHT - BOTTOM + 22, short(x), 'text-anchor="middle"')
        )
    for i, (_, line) in enumerate(series):
        beside = (i - (len(series) - 1) / 2) * 5  # so that they do not hide each other
        where = [(at_x(x) + beside, frame.y(s["median"]), s) for x, s in line]
        path_of = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in where)
        frame.parts.append(
            f'<polyline points="{path_of}" fill="none" stroke="{COLOURS[i % 8]}" stroke-width="2"/>'
        )
        for x, _, spread in where:
            frame.whisker(x, spread, COLOURS[i % 8])
            frame.dot(x, spread, COLOURS[i % 8])
    frame.write(path)
    return True


def dots(path, title, y_name, names, columns):
    """For each column (label, [spread or None of each name]) dots beside each other. False when
    there is none."""
    spreads = [spread for _, each in columns for spread in each if spread]
    if not spreads:
        return False
    frame = Frame(title, y_name, names, 0, max(spread["most"] for spread in spreads))
    step = (WIDTH - LEFT - 40) / len(columns)
    for i, (label, each) in enumerate(columns):
        middle = LEFT + 20 + (i + 0.5) * step
        for k, spread in enumerate(each):
            if spread:
                x = middle + (k - (len(each) - 1) / 2) * 10
                frame.whisker(x, spread, COLOURS[k % 8])
                frame.dot(x, spread, COLOURS[k % 8])
        frame.parts.append(below(middle, label, step))
    frame.write(path)
    return True


def below(x, label, room):
    """The label of a column; a slanted one where columns are narrow."""
    if room > 80:
        return Frame.text(x, HEIGHT - BOTTOM + 22, label, 'text-anchor="middle"')
    y = HEIGHT - BOTTOM + 14
    slant = f'text-anchor="end" font-size="11" transform="rotate(-40 {x:.1f} {y})"'
    return Frame.text(x, y, label, slant)
