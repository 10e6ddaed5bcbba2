// A recorded text, round by round. Everything is built once; a step only changes which parts are visible, so that nothing
// jumps and no step waits for the kernel. Words come from models: they are set as text and never read as HTML.

const MILLISECONDS_A_ROUND = 800;

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function box(tag, className, children) {
  const node = element(tag, className);
  node.append(...children);
  return node;
}

// Focus on a control keeps its keys: JupyterLab would move from cell to cell with the same arrows.
function control(tag, className, text) {
  const node = element(tag, className, text);
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  return node;
}

// A sign for each kind besides its colour: kept is underlined, refused struck out, the target's own bold (see rounds.css).
function token(word, fate) {
  const tag = { kept: "span", refused: "del", own: "strong" }[fate];
  return element(tag, `token ${fate}`, word);
}

function writtenTokens({ written, kept }) {
  return written.map((word, i) => token(word.replaceAll("⏎", "⏎\n"), i < kept ? "kept" : "own"));
}

function proposalTokens({ proposed, written, kept }) {
  const guesses = proposed.map((word, i) => token(word, i < kept ? "kept" : "refused"));
  return [...guesses, ...written.slice(kept).map((word) => token(word, "own"))];
}

function betRow([word, odds]) {
  const bar = element("span", "bar");
  bar.style.width = `${80 * odds}%`;
  const measure = box("span", "measure", [bar, element("span", "odds", odds.toFixed(2))]);
  return box("li", "bet", [element("span", "word", word), measure]);
}

function betsOf(model, bets) {
  const title = element("p", "title", `The ${model}'s bets for the last token`);
  return box("div", `bets ${model}`, [title, box("ol", "", bets.map(betRow))]);
}

function roundPanel(round) {
  return box("div", "round", [
    element("p", "heading", round.heading),
    box("div", "proposal", proposalTokens(round)),
    box("div", "both", [betsOf("target", round.target), betsOf("draft", round.draft)]),
  ]);
}

function legend() {
  return box("p", "legend", [
    "The text so far: ",
    token("kept guess", "kept"),
    " ",
    token("the target's own", "own"),
    "; this round's are framed. Below, ",
    token("refused guess", "refused"),
    ".",
  ]);
}

function render({ model, el }) {
  const rounds = model.get("rounds");
  const last = rounds.length;

  const range = control("input", "range", "");
  Object.assign(range, { type: "range", min: 1, max: last, step: 1 });
  const place = element("span", "place");
  const [previous, next, play] = ["Previous", "Next", "Play"].map((name) => {
    const button = control("button", name.toLowerCase(), name);
    button.type = "button";
    return button;
  });
  const written = rounds.map((round) => box("span", "written", writtenTokens(round)));
  const panels = rounds.map(roundPanel);
  const sentence = element("p", "sentence");
  sentence.setAttribute("role", "status");
  sentence.setAttribute("aria-live", "polite");
  // Unseen copies of all the sentences, in the same place, keep it as high as the longest.
  const copies = rounds.map((round) => element("p", "copy", round.sentence));
  copies.forEach((copy) => copy.setAttribute("aria-hidden", "true"));

  const root = box("div", "lesson-rounds", [
    box("div", "controls", [box("label", "", ["round", range]), place, previous, next, play]),
    legend(),
    box("div", "text", written),
    box("div", "stack", panels),
    box("div", "stack", [...copies, sentence]),
  ]);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "A text, round by round");

  function draw() {
    const number = model.get("number");
    range.value = number;
    range.setAttribute("aria-valuetext", `${number} of ${last}`);
    place.textContent = `${number} of ${last}`;
    previous.setAttribute("aria-disabled", number === 1);
    next.setAttribute("aria-disabled", number === last);
    for (let i = 0; i < last; i += 1) {
      written[i].classList.toggle("later", i >= number);
      written[i].classList.toggle("now", i === number - 1);
      panels[i].classList.toggle("now", i === number - 1);
    }
    sentence.textContent = rounds[number - 1].sentence;
  }

  function go(number) {
    model.set("number", Math.min(Math.max(number, 1), last));
    model.save_changes();
  }

  let timer = null;

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    sentence.setAttribute("aria-live", "polite");
  }

  function start() {
    play.textContent = "Pause";
    sentence.setAttribute("aria-live", "off"); // nobody can listen to a sentence every 0.8 s
    if (model.get("number") === last) go(1);
    timer = setInterval(() => {
      const number = model.get("number") + 1;
      if (number >= last) stop();
      go(number);
    }, MILLISECONDS_A_ROUND);
  }

  // Who asks for less motion steps with the other controls.
  const lessMotion = window.matchMedia("(prefers-reduced-motion: reduce)");

  function allowPlay() {
    stop();
    play.disabled = lessMotion.matches;
    play.title = lessMotion.matches ? "Off, since this system asks for reduced motion: use Next" : "";
  }

  function byHand(number) {
    stop();
    go(number);
  }

  range.addEventListener("input", () => byHand(range.valueAsNumber));
  previous.addEventListener("click", () => byHand(model.get("number") - 1));
  next.addEventListener("click", () => byHand(model.get("number") + 1));
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  lessMotion.addEventListener("change", allowPlay);
  model.on("change:number", draw);
  allowPlay();
  draw();
  el.append(root);

  return () => {
    stop();
    lessMotion.removeEventListener("change", allowPlay);
    model.off("change:number", draw);
  };
}

export default { render };
