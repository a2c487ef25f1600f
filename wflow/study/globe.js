"use strict";
// Tokens on the sphere, drawn on a canvas that is turned by drags and arrow keys: for the report of a run and for the
// explorer. Colours are the CSS variables --ball, --ball-edge, --soft, --near and --far (#rrggbb) of the canvas.
class Globe {
  constructor(canvas) {
    Object.assign(this, { canvas, pen: canvas.getContext("2d"), yaw: (32 * Math.PI) / 180, pitch: (24 * Math.PI) / 180 });
    const at = { x: 0, y: 0, down: false };
    canvas.addEventListener("pointerdown", (e) => { Object.assign(at, { x: e.clientX, y: e.clientY, down: true }); canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (!at.down) return;
      this.rotate((e.clientX - at.x) * 0.008, (e.clientY - at.y) * 0.008);
      Object.assign(at, { x: e.clientX, y: e.clientY });
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (at.down = false));
    const keys = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    canvas.addEventListener("keydown", (e) => { if (keys[e.key] && !this.flat) { e.preventDefault(); this.rotate(...keys[e.key]); } });
    this.resize = new ResizeObserver(() => this.paint());
    this.resize.observe(canvas);
  }

  // `points` has min(d, 3) coordinates a token: principal ones for d > 3. Tokens have the hues of their places in `start`.
  show(points, d, start = null) {
    Object.assign(this, { points, d, start, flat: d === 2 });
    this.canvas.classList.toggle("flat", this.flat);
    this.paint();
  }

  rotate(right, down) {
    if (this.flat) return;
    this.yaw -= right;
    this.pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, this.pitch + down));
    this.paint();
  }

  // Right, up and towards the viewer of a point.
  seen(x, y, z) {
    const ca = this.ca, sa = this.sa, ce = this.ce, se = this.se;
    return [-sa * x + ca * y, -se * (ca * x + sa * y) + ce * z, ce * (ca * x + sa * y) + se * z];
  }

  paint() {
    const scale = window.devicePixelRatio || 1, side = Math.round(this.canvas.clientWidth * scale);
    if (!side || !this.points) return;
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
    [this.ca, this.sa, this.ce, this.se] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const style = getComputedStyle(this.canvas), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
    const pen = this.pen, mid = side / 2, radius = side * 0.43;
    const at = (p) => [mid + radius * p[0], mid - radius * p[1]];
    pen.clearRect(0, 0, side, side);
    pen.fillStyle = colour("ball");
    pen.strokeStyle = colour("ball-edge");
    pen.lineWidth = scale;
    pen.beginPath(); pen.arc(mid, mid, radius, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    if (!this.flat) this.grid(pen, at, scale);
    pen.fillStyle = colour("soft");
    this.axes(pen, at, scale);
    const { points, start } = this, k = Math.min(this.d, 3), n = points.length / k, drawn = [];
    for (let i = 0; i < n; i++) {
      const p = i * k, x = points[p], y = points[p + 1];
      drawn.push([i, ...(this.flat ? [x, y, 1] : this.seen(x, y, points[p + 2]))]);
    }
    drawn.sort((a, b) => a[3] - b[3]);
    const size = Math.max(1.6, Math.min(5, 70 / Math.sqrt(n))) * scale, near = rgb(colour("near")), far = rgb(colour("far"));
    for (const [i, x, y, z] of drawn) {
      const w = 0.55 * ((z + 1) / 2) + (z >= 0 ? 0.45 : 0);
      if (start) {
        const a = start[i * k], b = start[i * k + 1], c = k > 2 ? start[i * k + 2] : 0;
        pen.fillStyle = `hsl(${Math.round((Math.atan2(b, a) * 180) / Math.PI + 360) % 360} 75% ${Math.round(50 + 18 * c)}% / ${0.35 + 0.65 * w})`;
      } else {
        pen.fillStyle = `rgb(${near.map((v, m) => Math.round(far[m] + (v - far[m]) * w)).join(" ")})`;
      }
      const [u, v] = at([x, y]);
      pen.beginPath(); pen.arc(u, v, size * (0.7 + 0.3 * w), 0, 2 * Math.PI); pen.fill();
    }
  }

  grid(pen, at, scale) {
    pen.lineWidth = 0.7 * scale;
    const curve = (point) => {
      for (const front of [false, true]) {
        pen.globalAlpha = front ? 0.55 : 0.18;
        pen.beginPath();
        let open = false;
        for (let m = 0; m <= 72; m++) {
          const p = this.seen(...point((m * Math.PI) / 36));
          if ((p[2] >= 0) === front) { open ? pen.lineTo(...at(p)) : pen.moveTo(...at(p)); open = true; } else open = false;
        }
        pen.stroke();
      }
    };
    for (let k = -2; k <= 2; k++) curve((a) => [Math.cos((k * Math.PI) / 6) * Math.cos(a), Math.cos((k * Math.PI) / 6) * Math.sin(a), Math.sin((k * Math.PI) / 6)]);
    for (let k = 0; k < 6; k++) curve((a) => [Math.cos(a) * Math.cos((k * Math.PI) / 6), Math.cos(a) * Math.sin((k * Math.PI) / 6), Math.sin(a)]);
    pen.globalAlpha = 1;
  }

  axes(pen, at, scale) {
    const names = this.d > 3 ? ["PC1", "PC2", "PC3"] : ["x₁", "x₂", "x₃"];
    pen.font = `${13 * scale}px system-ui, sans-serif`;
    pen.textAlign = "center"; pen.textBaseline = "middle";
    for (let k = 0; k < Math.min(this.d, 3); k++) {
      const e = [0, 0, 0]; e[k] = 1;
      const p = this.flat ? [e[0], e[1], 1] : this.seen(...e);
      pen.globalAlpha = p[2] >= 0 ? 1 : 0.45;
      pen.lineWidth = scale;
      pen.beginPath(); pen.moveTo(...at(p)); pen.lineTo(...at(p.map((v) => 1.07 * v))); pen.stroke();
      pen.fillText(names[k], ...at(p.map((v) => 1.12 * v)));
    }
    pen.globalAlpha = 1;
  }
}
