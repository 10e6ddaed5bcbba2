// What a visit asks of the page. A panel is one output: sliders, Reset and a picture (an image, or the page's own elements).
{
  const all = (selector, where = document) => [...where.querySelectorAll(selector)];
  const cells = () => all(".jp-Notebook .jp-CodeCell");
  const panelOf = (slider) => slider.closest(".jp-OutputArea-child");
  const isSentence = (text) => /^[^]{19,}[.!?]$/.test(text.trim());
  const ranges = "[role=slider], input[type=range]";

  // The words and marks of a picture that is no image: without its controls and its sentence.
  const elements = (panel) => {
    const copy = panel.cloneNode(true);
    all("[role=status], [role=slider], input, .controls", copy).forEach((part) => part.remove());
    return copy.innerHTML;
  };
  const seen = (panel) => panel.querySelector("img")?.src ?? elements(panel);
  // Decoding fails where the next picture comes in the meantime: then that one is decoded.
  const decoded = async (image) => {
    const source = image?.src;
    await image?.decode().catch((error) => {
      if (image.src === source) throw error;
      return decoded(image);
    });
  };
  const pixels = async (image) => {
    await decoded(image);
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d", { willReadFrequently: true });
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.naturalWidth, image.naturalHeight).data;
  };
  const picture = async (panel) => {
    const image = panel.querySelector("img");
    return image ? await pixels(image) : elements(panel);
  };
  // A part that moved for the first time lies over those that never moved: the same picture, but for a few edges.
  const alike = (one, other) => {
    if (typeof one === "string" || one.length !== other.length) return one === other;
    let apart = 0;
    for (let i = 0; i < one.length; i++) apart += Math.abs(one[i] - other[i]) > 60;
    return apart < 0.0005 * one.length;
  };
  const sentence = (slider) => {
    const panel = panelOf(slider);
    const status = [panel, panel.nextElementSibling].map((part) => part?.querySelector("[role=status]")).find(Boolean);
    return status ? status.textContent.trim() : "";
  };
  const position = (slider) =>
    slider.matches("input")
      ? [slider.min || 0, slider.value, slider.max || 100].map(Number)
      : ["min", "now", "max"].map((name) => Number(slider.getAttribute(`aria-value${name}`)));

  const state = async (slider) => {
    const panel = panelOf(slider);
    const values = all(".widget-readout, input", panel).map((part) => part.value ?? part.textContent);
    return { sliders: String(values), picture: await picture(panel), sentence: sentence(slider) };
  };
  let remembered;

  window.lesson = {
    sentence,
    prompts: () => cells().map((cell) => cell.querySelector(".jp-InputPrompt").textContent.trim()),
    // Whether that many code cells are there, none is waiting or running, and the kernel has nothing to do.
    idle: (count) =>
      cells().length === count &&
      !lesson.prompts().includes("[*]:") &&
      document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status === "idle",
    failures: () =>
      all(".jp-OutputArea-output[data-mime-type$='.error'], .jp-OutputArea-output[data-mime-type$='.stderr']").map(
        (output) => output.textContent,
      ),

    // Set lesson.begun as soon as a cell waits to run: a short notebook may be through before anyone looks.
    watch: () => {
      const changes = new MutationObserver(() => {
        lesson.begun ||= lesson.prompts().includes("[*]:");
        if (lesson.begun) changes.disconnect();
      });
      changes.observe(document.querySelector(".jp-Notebook"), { childList: true, characterData: true, subtree: true });
    },

    // For each code cell, how many pictures it shows that have words: an alt text, or a caption in the output below.
    stills: () =>
      cells().map((cell) => {
        const outputs = all(".jp-OutputArea-child", cell);
        return outputs.filter((output, i) => {
          const image = output.querySelector("img, svg");
          const drawn = image && (image.matches("svg") || image.naturalWidth > 0);
          return drawn && [image.alt, output.textContent, outputs[i + 1]?.textContent].some((text) => isSentence(text ?? ""));
        }).length;
      }),

    // For each code cell, how many explorables it shows.
    panels: () =>
      cells().map((cell) => all(".jp-OutputArea-child", cell).filter((output) => output.querySelector(ranges)).length),

    label: (slider) => {
      const label = slider.closest(".widget-inline-hbox")?.querySelector(".widget-label") ?? slider.labels?.[0];
      const words = (slider.getAttribute("aria-label") ?? label?.textContent ?? "no label").trim();
      return `code cell ${cells().indexOf(slider.closest(".jp-CodeCell")) + 1}, ${words}`;
    },
    // What of the sliders, the picture and the sentence is not as it was at the last `remember`.
    remember: async (slider) => {
      remembered = await state(slider);
    },
    changed: async (slider) => {
      const now = await state(slider);
      return Object.keys(now).filter((part) => !alike(now[part], remembered[part]));
    },
    place: (slider) => {
      const [low, now, high] = position(slider);
      return now >= high ? "high" : now <= low ? "low" : "between";
    },
    // Put the focus on the button Reset; whether there is one.
    focusReset: (slider) => {
      const button = all("button", panelOf(slider)).find((button) => button.textContent.trim() === "Reset");
      button?.focus();
      return Boolean(button);
    },

    // Set lesson.answer: the milliseconds from the next key to the changed picture, painted; null where nothing changes.
    listen: (slider, patience) => {
      const panel = panelOf(slider);
      let pressed, before; // the picture of an earlier key may come until this one is pressed
      const press = (event) => {
        pressed = event.timeStamp;
        before = seen(panel);
      };
      document.addEventListener("keydown", press, { once: true, capture: true });
      lesson.answer = new Promise((resolve) => {
        const changes = new MutationObserver(async () => {
          if (pressed === undefined || seen(panel) === before) return;
          changes.disconnect();
          await decoded(panel.querySelector("img"));
          requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - pressed)));
        });
        changes.observe(panel, { attributes: true, childList: true, characterData: true, subtree: true });
        setTimeout(() => {
          changes.disconnect();
          resolve(null);
        }, patience);
      });
    },
  };
}
