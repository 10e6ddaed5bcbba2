"""Notebook 03: a target with two bumps, and the one bump that each objective makes of it, found anew at every step."""

import torch

from lessonlib.distil.divergences import forward_kl, jsd, reverse_kl, total_variation
from lessonlib.workbook import style
from lessonlib.workbook.explorable import Explorable, Slider

OBJECTIVES = {"forward KL": forward_kl, "reverse KL": reverse_kl, "JSD": jsd, "TV": total_variation}
POINTS = torch.linspace(-20, 20, 401, dtype=torch.float64)
WIDTHS = (0.45, 7.0)  # the narrowest and the widest bump that is tried
SEEN = slice(80, 321)  # the points from -12 to 12, which are drawn


def bump(mean, width, points=POINTS):
    """The log-probabilities of one bump over `points`: mean and width [...] give [..., n]."""
    return torch.log_softmax(-0.5 * ((points - mean[..., None]) / width[..., None]) ** 2, -1)


def two_bumps(weight, distance, width, points=POINTS):
    """The target's log-probabilities [n]: bumps of one width `distance` apart around 0, the right one with odds `weight`."""
    left, right = bump(torch.tensor([-distance / 2, distance / 2], dtype=torch.float64), torch.full((2,), width).double(), points)
    share = torch.tensor(weight, dtype=torch.float64)
    return torch.logaddexp(left + (1 - share).log(), right + share.log())


def grid(mean, width, reach, count):
    """(means, widths), each [count squared], around one bump: as far as `reach` = (mean's, log-width's) on either side."""
    steps = torch.linspace(-1, 1, count, dtype=torch.float64)
    means, widths = torch.meshgrid(mean + reach[0] * steps, width * (reach[1] * steps).exp(), indexing="ij")
    return means.flatten(), widths.flatten()


FIRST_REACH = 6.0, 0.5 * float(torch.tensor(WIDTHS[1] / WIDTHS[0]).log())
FIRST = grid(0.0, (WIDTHS[0] * WIDTHS[1]) ** 0.5, FIRST_REACH, 25)
FIRST_ODDS = {step: bump(*FIRST, POINTS[::step]) for step in (1, 4)}


def nearest(divergence, log_p, log_q):
    """The row of `log_q` nearest to the target, of equals the first."""
    return int(divergence(log_p, log_q).round(decimals=10).numpy().argmin())


def best_bump(divergence, log_p, zooms=5):
    """(mean, width) of the bump nearest to the target `log_p` [401] over POINTS: a coarse look, then ever closer around the best."""
    means, widths, reach, spacing = *FIRST, FIRST_REACH, 12
    step = 1 if divergence is total_variation else 4  # every fourth point will do for a first look, but not where there are kinks
    best = nearest(divergence, log_p[::step].log_softmax(-1), FIRST_ODDS[step])
    for _ in range(zooms):
        reach = tuple(1.5 * r / spacing for r in reach)
        means, widths = grid(means[best], widths[best], reach, 9)
        best, spacing = nearest(divergence, log_p, bump(means, widths)), 4
    return means[best], widths[best]


def fit(log_p):
    """The best bump of each objective for a target `log_p` [401]: name -> (log-probabilities [401], alpha, mean)."""
    found = {}
    for name, divergence in OBJECTIVES.items():
        mean, width = best_bump(divergence, log_p)
        log_q = bump(mean, width)
        found[name] = log_q, 1 - float(total_variation(log_p, log_q)), float(mean)
    return found


def share_of_best(places, weight, distance, width):
    """The target's odds at each of the places over its best odds: exact, where the 401 points may lie beside a peak."""
    def height(x):
        left, right = (torch.exp(-0.5 * ((x - side * distance / 2) / width) ** 2) for side in (-1, 1))
        return (1 - weight) * left + weight * right

    at = height(torch.tensor(places, dtype=torch.float64))
    return at / max(float(height(POINTS).max()), float(at.max()))


class TwoBumps(Explorable):
    """Sliders for the target's second bump; on the left the best students, on the right their alpha and greedy odds."""

    sliders = (
        Slider("weight", "odds of the second bump", 0.35, 0.05, 0.5, 0.01),
        Slider("distance", "distance of the bumps", 6.54, 0.54, 9.54, 0.25, unit="units"),
        Slider("width", "width of each bump", 1.0, 0.6, 2.0, 0.1, unit="units"),
    )
    columns, height = 2, 3.6

    def setup(self, axes):
        """The target as an area, four lines for the students, two bars for each student."""
        left, right = axes
        self.x = POINTS[SEEN].numpy()
        (self.target,) = left.fill(self.x, 0 * self.x, color=style.GRID, label="target")
        self.curves = {
            name: left.plot(self.x, 0 * self.x, color=style.COLOURS[i], linestyle=style.LINES[i], linewidth=2, label=name)[0]
            for i, name in enumerate(OBJECTIVES)
        }
        left.set(xlim=(-12, 12), ylim=(0, 0.75), xlabel="place on the line of tokens (units)", ylabel="odds per unit")
        left.legend(frameon=False, fontsize=8.5, loc="upper right")
        names = [name.replace(" ", "\n") for name in OBJECTIVES]
        self.bars = style.bars(right, names, {"alpha at T = 1": [0] * 4, "target's odds at top token, of best": [0] * 4})
        for group, colour in zip(self.bars.values(), (style.INK, style.QUIET)):  # blue and orange are students on the left
            for bar, text, _ in group:
                bar.set_facecolor(colour)
                text.set_color(colour)
        right.set(ylim=(0, 1.35), yticks=[0, 0.25, 0.5, 0.75, 1], ylabel="share")
        right.legend(frameon=False, fontsize=8.5, loc="upper left")

    def draw(self, weight, distance, width):
        """Fit all four students to the target and move everything."""
        log_p = two_bumps(weight, distance, width)
        p, students = log_p.exp(), fit(log_p)
        per_unit = float(1 / (POINTS[1] - POINTS[0]))
        self.target.set_xy(torch.stack([POINTS, p * per_unit], 1)[SEEN].numpy())
        for name, (log_q, _, _) in students.items():
            self.curves[name].set_ydata((log_q.exp() * per_unit)[SEEN].numpy())
        alphas = {name: alpha for name, (_, alpha, _) in students.items()}
        at_top = list(map(float, share_of_best([mean for _, _, mean in students.values()], weight, distance, width)))
        style.move_bars(self.bars, dict(zip(self.bars, (list(alphas.values()), at_top))))
        ahead = max(("forward KL", "reverse KL"), key=alphas.get)
        other = "reverse KL" if ahead == "forward KL" else "forward KL"
        tie = abs(alphas[ahead] - alphas[other]) < 0.0005
        finding = "Both KLs reach the same alpha" if tie else f"{ahead[0].upper()}{ahead[1:]} reaches more alpha than {other}"
        style.finding(self.figure, finding)
        told = ", ".join(f"{alpha:.3f} with {name}" for name, alpha in alphas.items())
        return (f"Second bump {weight:.2f}, {distance:.2f} away, width {width:.1f}: the best student's alpha is {told}. "
                f"At forward KL's top token the target has {100 * at_top[0]:.0f} % of its best odds.")
