"use strict";
// The explorer: tokens under attention, moved while one looks. `Globe` of globe.js draws them. The site loads both files
// as they are, and solves here, in JavaScript; in a notebook `wflow.explore` hands them to anywidget, and Python solves.
const wflowExplore = (() => {
  const RANGES = [ // key, label, least, most, step
    ["n", "tokens n", 2, 200, 1], ["d", "dimension d", 2, 32, 1], ["beta", "strength β", 0, 12, 0.1],
    ["heads", "heads H", 1, 16, 1], ["sigma", "noise of heads σ", 0, 4, 0.1], ["rate", "rate of heads", 0.1, 5, 0.1],
    ["kappa", "noise of tokens κ", 0, 0.3, 0.005], ["dt", "time step dt", 0.005, 0.2, 0.005], ["steps", "steps", 50, 1000, 50],
  ];
  const CHOICES = [
    ["flow", "flow", { softmax: "softmax", unnormalised: "unnormalised", effective: "effective" }],
    ["direction", "direction", { ascent: "ascent (clusters)", descent: "descent" }],
    ["law", "kind of heads", { equal: "all β I", random: "random, symmetric", ou: "Ornstein-Uhlenbeck" }],
  ];
  const USED = { heads: ["random", "ou"], sigma: ["ou"], rate: ["ou"] }; // by which laws
  const DEFAULTS = { n: 200, d: 3, beta: 4, heads: 8, sigma: 1, rate: 1, kappa: 0, dt: 0.02, steps: 500, seed: 0,
    flow: "softmax", direction: "ascent", law: "equal" };

  // The solver
  // ----------

  // Velocity and energy of tokens x (n × 3) under symmetric heads D (H × 3 × 3), both row by row: docs/theory/setting.md.
  function velocity(x, D, flow, direction) {
    const n = x.length / 3, H = D.length / 9, v = new Float64Array(x.length), sign = direction === "ascent" ? 1 : -1;
    const times = (h, a) => [0, 3, 6].map((r) => D[9 * h + r] * a[0] + D[9 * h + r + 1] * a[1] + D[9 * h + r + 2] * a[2]);
    let energy = 0;
    for (let i = 0; i < 3 * n; i += 3) {
      const xi = [x[i], x[i + 1], x[i + 2]], g = [0, 0, 0];
      let inverse = 0; // 1/b, the mean of 1/m
      for (let h = 0; h < H; h++) {
        const [q0, q1, q2] = times(h, xi);
        let m = 0, s0 = 0, s1 = 0, s2 = 0;
        for (let j = 0; j < 3 * n; j += 3) {
          const u = Math.exp(q0 * x[j] + q1 * x[j + 1] + q2 * x[j + 2]);
          m += u; s0 += u * x[j]; s1 += u * x[j + 1]; s2 += u * x[j + 2];
        }
        energy += m / (2 * H * n * n);
        inverse += n / (m * H);
        const weight = flow === "softmax" ? n / (m * H) : 1 / H;
        times(h, [s0 / n, s1 / n, s2 / n]).forEach((a, k) => (g[k] += weight * a));
      }
      const along = g[0] * xi[0] + g[1] * xi[1] + g[2] * xi[2];
      for (let k = 0; k < 3; k++) v[i + k] = sign * (flow === "effective" ? inverse : 1) * (g[k] - along * xi[k]);
    }
    return { v, energy };
  }

  // One step of `wflow.solve` with scheme="euler", in place; `normal` draws standard normal numbers.
  function step(x, D, s, v, normal) {
    for (let i = 0; i < x.length; i += 3) {
      let y = [x[i], x[i + 1], x[i + 2]];
      if (s.kappa > 0) { // along the geodesic of a random tangent vector u
        const z = [normal(), normal(), normal()], along = z[0] * y[0] + z[1] * y[1] + z[2] * y[2];
        const u = z.map((a, k) => Math.sqrt(2 * s.kappa * s.dt) * (a - along * y[k])), size = Math.hypot(...u);
        y = y.map((a, k) => Math.cos(size) * a + (Math.sin(size) / size) * u[k]);
      }
      y = y.map((a, k) => a + s.dt * v[i + k]);
      const norm = Math.hypot(...y);
      for (let k = 0; k < 3; k++) x[i + k] = y[k] / norm;
    }
    if (s.law !== "ou") return;
    for (let h = 0; h < D.length; h += 9) {
      const z = symmetric(normal);
      for (let k = 0; k < 9; k++) D[h + k] += s.rate * ((k % 4 ? 0 : s.beta) - D[h + k]) * s.dt + s.sigma * Math.sqrt(s.dt) * z[k];
    }
  }

  // (Z + Zᵀ)/2 of a standard normal matrix Z (3 × 3).
  function symmetric(normal) {
    const z = Array.from({ length: 9 }, normal);
    return z.map((a, k) => (a + z[3 * (k % 3) + Math.floor(k / 3)]) / 2);
  }

  // Standard normal numbers of a seed: mulberry32 and Box-Muller.
  function normals(seed) {
    let a = (seed * 0x9e3779b9) >>> 0;
    const uniform = () => {
      a = (a + 0x6d2b79f5) >>> 0;
      let t = Math.imul(a ^ (a >>> 15), a | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
    };
    return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  // A film of the settings: `next()` gives time, energy and tokens of one frame after another, and null after the last.
  function solve(s, x, D, normal = normals(s.seed)) {
    let frame = -1;
    x ??= Float64Array.from({ length: 3 * s.n }, normal);
    for (let i = 0; i < x.length; i += 3) {
      const size = Math.hypot(x[i], x[i + 1], x[i + 2]);
      for (let k = 0; k < 3; k++) x[i + k] /= size;
    }
    const head = () => (s.law === "random" ? symmetric(normal).map((a) => s.beta * a) : [s.beta, 0, 0, 0, s.beta, 0, 0, 0, s.beta]);
    D ??= Float64Array.from(Array.from({ length: s.law === "equal" ? 1 : s.heads }, head).flat());
    let now = velocity(x, D, s.flow, s.direction);
    return {
      settings: s, d: 3,
      next() {
        if (frame === s.steps) return null;
        if (++frame) {
          step(x, D, s, now.v, normal);
          now = velocity(x, D, s.flow, s.direction);
        }
        return { t: frame * s.dt, energy: now.energy, points: x };
      },
    };
  }

  // The same setting in Python.
  function code(s, drawn) {
    const t = Number((s.steps * s.dt).toPrecision(12)), H = s.law === "equal" ? 1 : s.heads;
    const note = drawn ? "" : `# The page draws other tokens${s.law === "random" ? " and heads" : ""} of the same law.\n`;
    const random = `Z = np.random.default_rng(${s.seed}).standard_normal((${H}, ${s.d}, ${s.d}))\n`;
    const heads = { equal: "heads = mean[None]\n", random: `${random}heads = ${s.beta} * (Z + Z.transpose(0, 2, 1)) / 2\n`,
      ou: `heads = np.stack([mean] * ${H})\n` }[s.law];
    const law = s.law === "ou" ? `OrnsteinUhlenbeck(mean, rate=${s.rate}, sigma2=${Number((s.sigma ** 2).toPrecision(12))})` : "Frozen()";
    return `import numpy as np\n\nimport wflow\n\n${note}x0 = wflow.tokens.uniform(n=${s.n}, d=${s.d}, seed=${s.seed})\n`
      + `${s.law === "random" ? "" : `mean = ${s.beta} * np.eye(${s.d})\n`}${heads}run = wflow.solve(\n    x0,\n    wflow.heads.${law},\n`
      + `    heads=heads,\n    t_final=${t},\n    dt=${s.dt},\n    seed=${s.seed},\n    flow="${s.flow}",\n    direction="${s.direction}",\n`
      + `${s.kappa ? `    kappa=${s.kappa},\n` : ""}    save=wflow.SaveAt(every=1, snapshots=[0, ${t}]),\n)\nprint(run.energy[0, -1].item())\n`;
  }

  // The page
  // --------

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) name in made ? (made[name] = value) : made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Draw the energy until now, over the time of the whole film.
  function curve(canvas, times, energies, end) {
    const scale = window.devicePixelRatio || 1, w = Math.round(canvas.clientWidth * scale), h = Math.round(canvas.clientHeight * scale);
    if (!w || !h) return;
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas), pad = 18 * scale;
    const low = Math.min(...energies), high = Math.max(...energies), span = high - low || Math.abs(high) || 1;
    pen.clearRect(0, 0, w, h);
    pen.strokeStyle = pen.fillStyle = style.getPropertyValue("--soft");
    pen.font = `${12 * scale}px system-ui, sans-serif`;
    pen.lineWidth = scale;
    pen.strokeRect(scale, pad, w - 2 * scale, h - 2 * pad);
    pen.fillText(`E ${high.toPrecision(4)}`, 2 * scale, pad - 5 * scale);
    pen.fillText(low.toPrecision(4), 2 * scale, h - 4 * scale);
    pen.textAlign = "right";
    pen.fillText(`t = ${Number(end.toPrecision(6))}`, w - 2 * scale, h - 4 * scale);
    pen.strokeStyle = style.getPropertyValue("--energy");
    pen.lineWidth = 2 * scale;
    pen.beginPath();
    times.forEach((t, k) => pen.lineTo(2 * scale + (t / end) * (w - 4 * scale), h - pad - 3 * scale - ((energies[k] - low) / span) * (h - 2 * pad - 6 * scale)));
    pen.stroke();
    pen.textAlign = "left";
  }

  // Put the explorer into an element, and return a function that stops it. `source` has settings, `start(settings)`, which
  // leads to a call of `ready(film)` or `fail(text)` for the last settings asked for, and whether its tokens are drawn as in
  // the code.
  function mount(root, source) {
    const settings = { ...source.settings }, rows = {}, calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const sphere = element("canvas", { className: "sphere", tabIndex: 0, role: "img", "aria-label": "Tokens on the sphere" });
    const graph = element("canvas", { className: "graph", role: "img", "aria-label": "Energy over time" });
    const output = element("output"), text = element("code"), problem = element("p", { className: "problem", role: "alert" });
    const state = element("output");
    const button = (label, click) => element("button", { type: "button", textContent: label, onclick: click });
    const player = button("Play", () => { wanted = !playing; play(wanted); }), copier = button("Copy as code", copy);
    const controls = element("div", { className: "controls" });
    let film, times = [], energies = [], playing = false, wanted = !calm, timer, loop, last = 0, ended = false;
    const globe = new Globe(sphere);

    for (const [key, label, options] of CHOICES) {
      const input = element("select", {}, ...Object.entries(options).map(([value, name]) => element("option", { value }, name)));
      input.addEventListener("change", () => change(key, input.value));
      rows[key] = { input, row: element("label", {}, element("span", {}, label), input) };
    }
    for (const [key, label, min, max, by] of RANGES) {
      const input = element("input", { type: "range", min, max, step: by }), shown = element("output");
      input.addEventListener("input", () => change(key, Number(input.value)));
      rows[key] = { input, shown, row: element("label", {}, element("span", {}, label), input, shown) };
    }
    controls.append(...Object.values(rows).map(({ row }) => row));
    root.classList.add("wflow-explore");
    root.replaceChildren(
      element("div", { className: "stage" }, sphere),
      element("div", { className: "side" },
        element("p", { className: "buttons" }, player, button("Step", () => { wanted = false; play(false); advance(); }), button("Reset", begin),
          button("New tokens", () => change("seed", settings.seed + 1)), state),
        graph, output, problem, controls,
        element("details", {}, element("summary", {}, "Code"), element("pre", {}, text)), element("p", { className: "buttons" }, copier)),
    );

    function fill() {
      for (const [key, { input, shown, row }] of Object.entries(rows)) {
        input.value = settings[key];
        if (shown) shown.textContent = settings[key];
        row.hidden = (key === "d" && !source.drawn) || (USED[key] && !USED[key].includes(settings.law));
      }
      text.textContent = code(settings, source.drawn);
    }

    function change(key, value) {
      settings[key] = value;
      fill();
      clearTimeout(timer);
      timer = setTimeout(begin, source.wait);
    }

    function begin() {
      clearTimeout(timer);
      timer = null;
      problem.textContent = "";
      state.textContent = "computing";
      source.start({ ...settings });
    }

    // While the timer runs the controls are ahead of every answer.
    function answered(shown, message) {
      if (timer) return false;
      Object.assign(settings, shown);
      problem.textContent = message;
      state.textContent = "";
      fill();
      return true;
    }

    source.ready = (made) => {
      if (!answered(made.settings, "")) return;
      film = made;
      times = []; energies = []; ended = false;
      advance();
      play(wanted);
    };
    source.fail = (message) => answered(film?.settings, message);

    function advance() {
      const frame = film && film.next();
      if (!frame) { ended = true; return; }
      times.push(frame.t); energies.push(frame.energy);
      output.textContent = `t = ${frame.t.toFixed(2)}, energy ${frame.energy.toPrecision(6)}`;
      root.dataset.frame = times.length - 1;
      globe.show(frame.points, film.d);
      draw();
    }
    const draw = () => { if (times.length) curve(graph, times, energies, film.settings.steps * film.settings.dt); };

    function play(on) {
      playing = on;
      player.textContent = on ? "Pause" : "Play";
      if (on && ended) begin();
      if (on && !loop) loop = requestAnimationFrame(run);
    }

    function run(now) {
      loop = 0;
      if (!playing) return;
      if (now - last > 18) { last = now; advance(); }
      if (ended) play(false); else loop = requestAnimationFrame(run);
    }

    async function copy() {
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch { // not allowed here: the code is shown and marked
        root.querySelector("details").open = true;
        getSelection().selectAllChildren(text);
        copier.textContent = "Marked: copy it";
        return;
      }
      copier.textContent = "Copied";
      setTimeout(() => { copier.textContent = "Copy as code"; }, 2000);
    }

    const repaint = () => { globe.paint(); draw(); };
    const theme = new MutationObserver(repaint), size = new ResizeObserver(draw);
    for (const part of [document.documentElement, document.body]) theme.observe(part, { attributes: true });
    size.observe(graph);
    fill();
    begin();
    return () => { play(false); clearTimeout(timer); source.stop?.(); theme.disconnect(); size.disconnect(); globe.resize.disconnect(); };
  }

  // Films that are computed here, and films of a kernel: the trait `film` follows the trait `settings`, late. After an error
  // it is the last film with the error and the settings that failed, and then the trait `settings` is what it was.
  function local(settings = {}) {
    return { settings: { ...DEFAULTS, ...settings }, drawn: false, wait: 30, start(s) { this.ready(solve(s)); } };
  }

  function kernel(model) {
    const source = { settings: model.get("settings"), drawn: true, wait: 250 };
    const asked = (s) => s && Object.entries(model.get("settings")).every(([key, value]) => s[key] === value);
    const show = () => {
      const { error, failed, settings, d, times, energy, points } = model.get("film");
      if (error && asked(failed)) { source.fail(error); return; }
      if (!asked(settings)) return; // another film follows
      const numbers = (view, kind) => new kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
      const t = numbers(times, Float64Array), e = numbers(energy, Float64Array), x = numbers(points, Float32Array), size = x.length / t.length;
      let k = 0;
      source.ready({ settings, d, next: () => (k < t.length ? { t: t[k], energy: e[k], points: x.subarray(k * size, ++k * size) } : null) });
    };
    source.start = (s) => {
      if (asked(s)) { show(); return; }
      model.set("settings", s);
      model.save_changes();
    };
    model.on("change:film", show);
    source.stop = () => model.off("change:film", show);
    return source;
  }

  return { solve, step, velocity, code, local, mount, render: ({ model, el }) => {
    const root = element("div");
    el.append(root);
    return mount(root, kernel(model));
  } };
})();
