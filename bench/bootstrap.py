"""How sure a median is: what it would be over samples drawn again from the same runs. It knows
nothing of what the runs are."""

import random

SAMPLES = 4000


def drawn_again(runs):
    """As many runs, each of them any of these."""
    return random.choices(runs, k=len(runs))


def nine_of_ten(draw):
    """The 5 % and the 95 % quantile of what `draw` returns, over and over."""
    values = sorted(draw() for _ in range(SAMPLES))
    return values[SAMPLES // 20], values[-SAMPLES // 20]
