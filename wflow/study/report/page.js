(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
    return out.buffer;
  }
  // Little-endian on every machine that has a browser of these days. Gaps become null.
  function numbers(packed) {
    const values = packed.f8 ? new Float64Array(bytes(packed.f8)) : new Float32Array(bytes(packed.f4));
    return Array.from(values, (v) => (Number.isFinite(v) ? v : null));
  }
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const dashes = { drift: "dash", ito: "dashdot", diffusion: "longdash", martingale: "dash", gradient: "dot" };

  // Charts, by plotly
  // -----------------
  function fade(hex, alpha) {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  }

  function chartOf(spec, narrow) {
    const traces = [], layout = {
      margin: { l: 62, r: 16, t: 34, b: 44 }, font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified", dragmode: narrow ? false : "zoom",
      hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("rule"), font: { color: colour("ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft"), activecolor: colour("accent") },
      legend: narrow ? { orientation: "h", y: spec.panels.length > 1 ? -0.16 : -0.34, yanchor: "top", x: 0 }
                     : { x: 1.01, y: 1, tracegroupgap: 24, groupclick: "toggleitem" },
    };
    const line = { gridcolor: colour("rule"), zerolinecolor: colour("soft"), zerolinewidth: 1, linecolor: colour("rule"), ticks: "" };
    const count = spec.panels.length, gap = 0.07;
    const share = count === 2 ? [0.6, 0.4] : spec.panels.map(() => 1 / count);
    const x = numbers(spec.x);
    let top = 1;
    spec.panels.forEach((panel, k) => {
      const suffix = k ? String(k + 1) : "", bottom = k === count - 1 ? 0 : top - share[k] * (1 - gap * (count - 1));
      layout[`yaxis${suffix}`] = { ...line, domain: [Math.max(0, bottom), top], title: { text: panel.label, standoff: 6 },
        type: panel.log ? "log" : "linear", exponentformat: "power", automargin: true };
      top = bottom - gap;
      panel.curves.forEach((curve) => {
        const shade = colour(curve.role), xs = curve.x ? numbers(curve.x) : x;
        const own = { xaxis: "x", yaxis: `y${suffix}`, legendgroup: `g${k}`, x: xs, visible: curve.hidden ? "legendonly" : true };
        if (curve.low) {
          // Plotly fills over gaps, so a band is one closed outline for each stretch without them.
          const low = numbers(curve.low), high = numbers(curve.high), bx = [], by = [];
          let part = [];
          const close = () => {
            if (part.length) {
              const at = part.concat(part.slice().reverse());
              at.forEach((i, m) => { bx.push(xs[i]); by.push(m < part.length ? low[i] : high[i]); });
              bx.push(null); by.push(null);
            }
            part = [];
          };
          xs.forEach((_, i) => (low[i] === null || high[i] === null ? close() : part.push(i)));
          close();
          traces.push({ ...own, x: bx, y: by, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: fade(shade, 0.15),
            hoverinfo: "skip", showlegend: false, name: curve.name, meta: "band" });
        }
        const few = xs.length < 40;
        traces.push({ ...own, y: numbers(curve.y), name: curve.name, mode: few ? "lines+markers" : "lines",
          marker: { size: 5 }, line: { color: shade, width: 1.9, dash: dashes[curve.role] || "solid" },
          hovertemplate: "%{y:.5g}" });
      });
    });
    layout.xaxis = { ...line, title: { text: spec.xlabel, standoff: 6 }, anchor: count > 1 ? `y${count}` : "y", hoverformat: ".5g", zeroline: false };
    return [traces, layout];
  }

  function draw(figure) {
    const spec = data.charts[figure.dataset.chart], live = figure.querySelector(".live");
    if (!spec || typeof Plotly === "undefined") return;
    live.hidden = false;
    try {
      const narrow = live.clientWidth < 620, [traces, layout] = chartOf(spec, narrow);
      const options = { responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
        modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]], toImageButtonOptions: { scale: 2 } };
      Plotly.react(live, traces, layout, options);
      live.on("plotly_legendclick", (event) => {
        // A band goes with its curve, which follows it.
        const at = event.curveNumber, band = at - 1;
        if (traces[band] && traces[band].meta === "band") {
          const now = live.data[at].visible === "legendonly" ? true : "legendonly";
          Plotly.restyle(live, { visible: now }, [band, at]);
          return false;
        }
        return true;
      });
      figure.querySelector(".static").hidden = true;
      figure.dataset.drawn = "yes";
    } catch (error) {
      live.hidden = true;
      figure.querySelector(".static").hidden = false;
      console.error(error);
    }
  }

  // Tokens, on a canvas
  // -------------------
  class Player {
    constructor(figure, spec) {
      Object.assign(this, { spec, frame: 0 });
      this.canvas = figure.querySelector("canvas");
      this.globe = new Globe(this.canvas);
      this.slider = figure.querySelector("input[type=range]");
      this.button = figure.querySelector(".play");
      this.output = figure.querySelector("output");
      this.turn = figure.querySelector(".turn");
      this.tint = figure.querySelector(".tint");
      this.points = Float32Array.from(new Int16Array(bytes(spec.xyz)), (v) => (v * 1.5) / 32767);
      this.playing = false;
      figure.querySelector(".live").hidden = false;
      figure.querySelector(".static").hidden = true;
      if (this.turn) this.turn.checked = false;
      this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
      this.button.addEventListener("click", () => this.play(!this.playing));
      this.tint.addEventListener("change", () => this.paint());
      if (this.turn) this.turn.addEventListener("change", () => this.run());
      this.show(0);
      // The first of the page plays, or shows its end where motion is not wanted.
      if (!players.length && !calm) this.play(true);
      else if (!players.length) this.show(spec.times.length - 1);
    }

    show(frame) {
      this.frame = frame;
      const text = `t = ${this.spec.times[frame]}`;
      this.slider.value = frame;
      this.slider.setAttribute("aria-valuetext", text);
      this.output.textContent = text;
      this.paint();
    }

    play(on) {
      if (on && this.frame === this.spec.times.length - 1) this.show(0);
      this.playing = on;
      this.button.textContent = on ? "Pause" : "Play";
      this.button.setAttribute("aria-pressed", String(on));
      this.since = undefined;
      this.run();
    }

    run() {
      if (this.loop) return;
      const pause = Math.max(50, Math.min(700, 9000 / this.spec.times.length));
      let before;
      const step = (now) => {
        const turning = this.turn && this.turn.checked;
        if (!this.playing && !turning) { this.loop = 0; return; }
        if (turning && before !== undefined) this.globe.yaw += (now - before) * 0.0003;
        before = now;
        if (this.playing && (this.since === undefined || now - this.since >= pause)) {
          if (this.since !== undefined) {
            this.show(Math.min(this.frame + 1, this.spec.times.length - 1));
            if (this.frame === this.spec.times.length - 1) this.play(false);
          }
          this.since = now;
        } else if (turning) this.paint();
        this.loop = requestAnimationFrame(step);
      };
      this.loop = requestAnimationFrame(step);
    }

    paint() {
      const size = this.spec.tokens * this.spec.axes, at = (frame) => this.points.subarray(frame * size, (frame + 1) * size);
      this.globe.show(at(this.frame), this.spec.d, this.tint.value === "start" ? at(0) : null);
      this.canvas.dataset.frame = this.frame;
    }
  }

  // The page: contents, choice of a run, what is drawn when it is seen
  // ------------------------------------------------------------------
  const players = [];
  function see(figure) {
    if (figure.dataset.chart) draw(figure);
    else if (data.clouds[figure.dataset.cloud]) players.push(new Player(figure, data.clouds[figure.dataset.cloud]));
  }
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watch.unobserve(entry.target); see(entry.target); }
  }, { rootMargin: "600px" });
  document.querySelectorAll("figure[data-chart], figure[data-cloud]").forEach((figure) => watch.observe(figure));

  const chooser = document.getElementById("choose");
  const runs = Array.from(document.querySelectorAll("section.run"));
  function choose(id) {
    runs.forEach((section) => (section.hidden = section.id !== id));
    contents();
  }
  function contents() {
    const nav = document.getElementById("contents"), list = document.createElement("ul");
    document.querySelectorAll("main h2[id], section.run:not([hidden]) h3[id]").forEach((title) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = `#${title.id}`;
      link.textContent = title.textContent;
      item.append(link);
      list.append(item);
    });
    nav.replaceChildren(list);
    nav.hidden = list.children.length < 2;
  }
  if (chooser) {
    document.querySelector(".choose").hidden = false;
    chooser.value = runs[runs.length - 1].id;
    chooser.addEventListener("change", () => choose(chooser.value));
    choose(chooser.value);
  } else contents();

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.querySelectorAll("figure[data-drawn]").forEach(draw);
    players.forEach((player) => player.paint());
  });
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll(".static").forEach((part) => (part.hidden = false));
  });
  window.addEventListener("afterprint", () => {
    document.querySelectorAll("figure").forEach((figure) => {
      const live = figure.querySelector(".live"), part = figure.querySelector(".static");
      if (live && part) part.hidden = !live.hidden;
    });
  });
  document.documentElement.dataset.ready = calm ? "calm" : "yes";
})();
