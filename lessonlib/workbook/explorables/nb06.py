"""Notebook 06: what the recorded trainings of draft A did, step by step."""

from lessonlib.workbook import style
from lessonlib.workbook.explorable import Choice, Explorable


class RecordedTrainings(Explorable):
    """Choose an objective and a step: alpha by step with its interval and the untrained level, and the training loss beside.

    runs: {name: recorded run}, all measured after the same steps; the first of them stays in the background of the others.
    """

    width, height, columns = 8.6, 3.4, 2

    def __init__(self, runs):
        self.runs, self.names = runs, tuple(runs)
        steps, _ = self.alphas(self.names[0])
        self.sliders = (Choice("objective", "objective", self.names[min(1, len(runs) - 1)], self.names),
                        Choice("step", "step", str(steps[-1]), tuple(map(str, steps))))
        super().__init__()

    def alphas(self, name):
        """(steps, alphas) of a run, in the order of the steps."""
        by_step = sorted((int(step), alpha) for step, alpha in self.runs[name]["alpha_by_step"].items())
        return [step for step, _ in by_step], [alpha for _, alpha in by_step]

    def loss_at(self, name, step):
        """The recorded loss, a mean over some steps, that holds the one after `step` steps; the first for step 0."""
        losses, every = self.runs[name]["losses"], self.runs[name]["losses_every"]
        return losses[min(max(step - 1, 0) // every, len(losses) - 1)]

    def setup(self, axes):
        """The first run's alpha, the untrained level, and for the chosen one a line with its intervals, a line of losses, two marks."""
        self.left, self.right = axes
        steps, first = self.alphas(self.names[0])
        self.left.plot(steps, [alpha["value"] for alpha in first], color=style.QUIET, linestyle=style.LINES[1], linewidth=1.6, label=self.names[0])
        self.left.axhline(first[0]["value"], color=style.FIFTH, linestyle=style.LINES[3], linewidth=1.6, label="untrained")
        self.line = self.left.plot([], [], color=style.TARGET, linewidth=2.4, label="chosen")[0]
        self.bars = [self.left.plot([], [], color=style.TARGET, linewidth=1.2)[0] for _ in steps]
        ends = [alpha[end] for name in self.names for alpha in self.alphas(name)[1] for end in ("low", "high")]
        self.left.set(xlim=(-10, 1.03 * steps[-1]), ylim=(min(ends) - 0.01, max(ends) + 0.03), xlabel="step",
                      ylabel="alpha at T = 1, held-out answers")
        self.left.legend(frameon=False, loc="upper left", ncols=3, fontsize=9)
        self.losses = self.right.plot([], [], color=style.DRAFT, linewidth=1.8)[0]
        self.right.set(xlim=(-10, 1.03 * steps[-1]), ylim=(0, 1.1), xlabel="step", ylabel="training loss / its first value")
        self.marks = [ax.plot([0], [0], "o", markersize=10, color=colour)[0] for ax, colour in ((self.left, style.TARGET), (self.right, style.DRAFT))]

    def draw(self, objective, step):
        """Move the line of alpha, its intervals, the line of losses and both marks."""
        steps, alphas = self.alphas(objective)
        chosen, alpha = int(step), alphas[steps.index(int(step))]
        self.line.set_data(steps, [each["value"] for each in alphas])
        for bar, place, each in zip(self.bars, steps, alphas):
            bar.set_data([place, place], [each["low"], each["high"]])
        losses, every = self.runs[objective]["losses"], self.runs[objective]["losses_every"]
        first, loss = losses[0], self.loss_at(objective, chosen)
        self.losses.set_data([every * (i + 0.5) for i in range(len(losses))], [each / first for each in losses])
        for mark, height in zip(self.marks, (alpha["value"], loss / first)):
            mark.set_data([chosen], [height])
        style.finding(self.left, f"{objective}, step {step}: alpha {alpha['value']:.3f}")
        style.finding(self.right, f"loss {loss:.2f} of {first:.2f} at first")
        return (f"Trained by {objective}, alpha is {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}] after {step} steps, "
                f"from {alphas[0]['value']:.3f} untrained; the training loss is {loss:.3f}, from {first:.3f} in the first {every} steps.")
