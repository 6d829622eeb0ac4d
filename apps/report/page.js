// Turns the data of the page into charts, which uPlot draws.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const darkMode = matchMedia("(prefers-color-scheme: dark)");
  const checking = location.hash === "#check";  // set by tests: counts the drawn pixels

  // The colours of Okabe and Ito, which suit all kinds of colour vision, with brown instead of their
  // yellow, which is invisible on white. Runs beyond the seventh repeat the colours with dashes; fp32
  // has a thick solid line in the text colour.
  const themes = {
    light: {
      ink: "#16202b", text: "#566473", grid: "#e6eaee",
      hues: ["#0072b2", "#d55e00", "#009e73", "#c2569b", "#d39200", "#45b0ea", "#7d5130"],
      stages: { compute: "#a9b3be", exposed: "#d55e00", encode: "#0072b2", wire: "#6cc0f0", decode: "#009e73", wait: "#e2b64a" },
    },
    dark: {
      ink: "#f3f6f9", text: "#a3b0bd", grid: "#26303a",
      hues: ["#4aa8ea", "#ff8a4c", "#25c795", "#ea94cb", "#f0b731", "#9bdcff", "#c99a74"],
      stages: { compute: "#5f6d7b", exposed: "#ff8a4c", encode: "#4aa8ea", wire: "#9bdcff", decode: "#25c795", wait: "#f0b731" },
    },
  };
  const dashes = [[], [7, 4], [2, 3]];
  // Corners of the marks, within -1 to 1; no corners: a circle. Marks of the same colour differ in shape
  // as lines differ in dashes.
  const shapes = [[], [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.1], [1.1, 0.9], [-1.1, 0.9]]];
  const printWidth = 655;  // CSS pixels: the width of A4 minus the margins and the padding of a card

  let printing = false;
  let charts = [];
  const hidden = new Set();  // labels that the reader has hidden
  const theme = () => (darkMode.matches && !printing ? themes.dark : themes.light);

  const form = (index) => ({ dash: dashes[Math.min(index, 2)], shape: shapes[Math.min(index, 2)] });
  // One look per label, the same in every chart.
  const looks = new Map();
  const look = (label, reference) => {
    if (!looks.has(label)) {
      const before = [...looks.values()].filter((other) => other.reference === reference).length;
      looks.set(label, reference
        ? { reference, ...form(before), width: 3 }
        : { reference, hue: before % 7, ...form(Math.floor(before / 7)), width: 2 });
    }
    return looks.get(label);
  };
  const colour = (its) => (its.reference ? theme().ink : theme().hues[its.hue]);
  const stroke = (its) => its.dash.length === 0 ? colour(its)
    : `repeating-linear-gradient(90deg, ${colour(its)} 0 ${its.dash[0]}px, transparent ${its.dash[0]}px ${its.dash[0] + its.dash[1]}px)`;

  // Numbers with units.
  const digits = (value, count) => value.toLocaleString("en", { maximumSignificantDigits: count, useGrouping: false });
  const seconds = (value) => value == null ? "–"
    : value === 0 ? "0" : Math.abs(value) >= 1 ? digits(value, 4) + " s"
    : Math.abs(value) >= 1e-3 ? digits(value * 1e3, 3) + " ms" : digits(value * 1e6, 3) + " µs";
  const bytes = (value, count = 3) => {
    if (value == null) return "–";
    for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (value >= size) return digits(value / size, count) + " " + unit;
    }
    return digits(value, count) + " B";
  };
  const last = (values) => values.findLast((value) => value != null);
  const percent = (value) => value == null ? "–" : (value * 100).toFixed(2) + " %";
  const plain = (value) => value == null ? "–" : digits(value, 4);
  const small = (value) => (value >= 1e-3 ? digits(value, 3) : value.toExponential(1));

  const axis = (label, format, more = {}) => ({
    label, labelSize: 22, labelGap: 2, labelFont: "12px system-ui, sans-serif", font: "12px system-ui, sans-serif",
    stroke: () => theme().text,
    grid: { stroke: () => theme().grid, width: 1 },
    ticks: { stroke: () => theme().grid, width: 1, size: 5 },
    values: (u, splits) => splits.map((value) => (value == null ? null : format(value))),
    ...more,
  });

  // Ticks of a logarithmic axis: as many per decade as fit.
  const logTicks = {
    splits: (u, index, low, high) => {
      const most = (index === 0 ? u.bbox.width / 72 : u.bbox.height / 30) / devicePixelRatio;
      for (const steps of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
        const ticks = [];
        for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
          ticks.push(...steps.map((step) => Number(`${step}e${power}`)).filter((tick) => tick >= low && tick <= high));
        }
        if (ticks.length <= most || steps.length === 1) return ticks;
      }
    },
    filter: (u, ticks) => ticks,
  };

  const element = (id) => document.getElementById("chart-" + id);
  const widthOf = (figure) => {
    if (printing) return printWidth;
    const plot = figure.querySelector(".plot");
    return Math.max(240, Math.floor(plot.getBoundingClientRect().width));
  };
  const heightOf = (chart) => (typeof chart.height === "function" ? chart.height() : printing ? 270 : chart.height);

  const build = (chart) => {
    const figure = element(chart.id);
    const plot = figure.querySelector(".plot");
    plot.textContent = "";
    figure.dataset.points = String(chart.points);
    if (chart.points === 0) {
      const note = plot.appendChild(document.createElement("p"));
      note.className = "empty";
      note.textContent = chart.empty;
      return;
    }
    const options = chart.options();
    options.width = widthOf(figure);
    options.height = heightOf(chart);
    options.hooks = {
      ...options.hooks,
      setSeries: [(u, index, change) => {
        if (index == null || change.show == null) return;
        const label = u.series[index].label;
        if (hidden.has(label) !== change.show) return;  // already known: the change came from another chart
        if (change.show) hidden.delete(label); else hidden.add(label);
        for (const other of charts) {
          other.plot?.series.forEach((series, i) => {
            if (other.plot !== u && i > 0 && series.label === label && series.show !== change.show) {
              other.plot.setSeries(i, { show: change.show });
            }
          });
        }
      }],
    };
    options.series.forEach((series, i) => { if (i > 0) series.show = !hidden.has(series.label); });
    chart.plot = new uPlot(options, chart.data, plot);
    chart.built?.(chart.plot);
  };

  // Curves with different x values, joined on one x axis so that the cursor works for all of them.
  const lines = ({ id, curves, xName, xAxis, xFormat, yName, yFormat, yTick, height, log, yLog, floor, ceiling, points, idle = "at the end", empty }) => {
    const shown = curves.filter((curve) => curve.x.length > 0);
    const joined = shown.length > 0 ? uPlot.join(shown.map((curve) => [curve.x, curve.y])) : [[]];
    const total = shown.reduce((sum, curve) => sum + curve.y.filter((y) => y != null).length, 0);
    let zoomed = false;
    const options = () => ({
      focus: { alpha: 0.25 },
      hooks: { setSelect: [(u) => { zoomed = u.select.width > 0 || u.select.height > 0; }] },
      scales: {
        x: {
          time: false, distr: log ? 3 : 1,
          range: (u, low, high) => log ? [low * 0.93, high * 1.07] : low === high ? [low - 1, high + 1] : [low, high],
        },
        y: {
          distr: yLog ? 3 : 1,
          range: (u, low, high) => {
            if (low == null || high == null) return yLog ? [0.1, 1] : [0, 1];
            if (yLog) return [low / 1.25, high * 1.25];
            const bottom = floor != null && !zoomed ? Math.max(low, Math.min(floor, high)) : low;
            const top = ceiling != null && !zoomed ? Math.min(high, Math.max(ceiling, low)) : high;
            const room = (top - bottom || 0.01) * 0.06;
            return [bottom - room, top + room];
          },
        },
      },
      axes: [axis(xName, xAxis, { size: 34, space: 70, ...(log ? logTicks : {}) }), axis(yName, yTick, { size: 60, ...(yLog ? logTicks : {}) })],
      cursor: {
        drag: { x: true, y: true, uni: 40 },
        bind: { dblclick: (u, target, handle) => (event) => { zoomed = false; handle(event); } },
        focus: { prox: 24 },
        points: { size: 8 },
        // Between its first and its last point a curve has a nearest point; outside it has none.
        hover: {
          prox: (u, series, index, x) => {
            const at = series === 0 ? null : shown[series - 1].x;
            return at == null || (x >= at[0] && x <= at[at.length - 1]) ? null : 12;
          },
        },
      },
      legend: {
        markers: { width: 0, fill: (u, i) => (i === 0 ? "none" : stroke(shown[i - 1].look)) },
      },
      series: [
        { label: xName, value: (u, value) => (u.cursor.idx == null ? idle : xFormat(value)) },
        ...shown.map((curve) => ({
          label: curve.label,
          stroke: () => colour(curve.look),
          width: curve.look.width,
          dash: curve.look.dash,
          // A line needs at least two points.
          points: { show: points === "all" || curve.x.length < 3, size: points === "all" ? 10 : 7, fill: () => colour(curve.look) },
          // Without a cursor the legend shows the last value of each curve.
          value: (u, value, series, index) => (curve.value ? curve.value(value, u.data[0][index])
            : yFormat(u.cursor.idx == null ? last(curve.y) : value)),
        })),
      ],
    });
    return { id, options, data: joined, points: total, height, empty, curves: shown, colours: () => shown.map((curve) => colour(curve.look)) };
  };

  const runs = data.runs.map((run) => ({ ...run, look: look(run.label, run.reference) }));
  const curves = (key) => runs.map((run) => ({ label: run.label, look: run.look, ...run[key] }));

  // The first evaluations of a new network would squeeze the rest into the end of the chart, so the
  // axis leaves out the worst quarter of the values; zooming in on the start shows them. The last
  // value of a run is never cut off.
  const results = runs.flatMap((run) => run.step.y.filter((y) => y != null)).sort((a, b) => a - b);
  const finals = runs.map((run) => last(run.step.y)).filter((y) => y != null);
  const quarter = Math.floor(results.length / 4);
  const metric = data.metric === "loss"
    ? { yName: "test loss", yFormat: (value) => (value == null ? "–" : value.toFixed(3)), yTick: (value) => digits(value, 4),
      ceiling: results.length === 0 ? null : Math.max(results[results.length - 1 - quarter], ...finals) }
    : { yName: "test accuracy", yFormat: percent, yTick: (value) => digits(value * 100, 4) + " %",
      floor: results.length === 0 ? null : Math.min(results[quarter], ...finals) };
  const result = (id, more) => lines({ id, curves: curves(id), ...metric, height: 300, empty: "No evaluations yet.", ...more });

  // Keeps positive values, since a logarithmic axis has no zero.
  const positive = (curve) => {
    const keep = curve.x.map((x, i) => i).filter((i) => curve.x[i] > 0);
    return { ...curve, x: keep.map((i) => curve.x[i]), y: keep.map((i) => curve.y[i]) };
  };

  const positiveY = (curve) => ({ ...curve, y: curve.y.map((y) => (y > 0 ? y : null)) });

  const stages = () => {
    const named = { compute: "compute", exposed: "exposed wait", encode: "encode", wire: "wire", decode: "decode", wait: "wait for ranks" };
    const shown = runs.filter((run) => run.stages.compute != null || run.stages.wire != null);
    const value = (run, key) => run.stages[key] ?? 0;
    // Two bars per run and a space: rows 3i and 3i+1. A stack is drawn from its top down, each piece
    // as a bar from zero that the next piece covers in part.
    const rows = shown.flatMap((run, i) => [3 * i, 3 * i + 1]);
    const stacks = [["compute", "exposed"], ["encode", "wire", "decode", "wait"]];
    const pieces = stacks.flatMap((stack, bar) => stack.map((key, depth) => ({
      key, bar, tops: shown.flatMap((run) => {
        const top = stack.slice(0, depth + 1).reduce((sum, part) => sum + value(run, part), 0);
        return bar === 0 ? [top, null] : [null, top];
      }),
    })).reverse());
    const highest = Math.max(0, ...pieces.flatMap((piece) => piece.tops));
    const cut = (text) => { const most = widthOf(element("stages")) < 420 ? 14 : 24; return text.length > most ? text.slice(0, most - 1) + "…" : text; };
    const labelWidth = () => 16 + 7 * Math.max(4, ...shown.map((run) => cut(run.label).length));
    const options = () => ({
      scales: {
        x: { time: false, ori: 1, dir: -1, range: [-1, 3 * shown.length - 1] },
        y: { ori: 0, range: (u, low, high) => [0, highest * 1.04] },
      },
      axes: [
        axis("", String, {
          side: 3, label: undefined, size: labelWidth(), grid: { show: false }, ticks: { show: false }, gap: 4,
          stroke: () => theme().ink,
          splits: () => shown.map((run, i) => 3 * i + 0.5),
          values: () => shown.map((run) => cut(run.label)),
        }),
        axis("time per step", seconds, { side: 2, scale: "y", space: 70, size: 34 }),
      ],
      cursor: { drag: { x: false, y: true, setScale: false }, points: { show: false }, x: true, y: false },
      hooks: {
        // Bars start at zero, so a selection only sets the end of the axis.
        setSelect: [(u) => {
          const end = u.posToVal(u.select.left + u.select.width, "y");
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          u.setScale("y", { min: 0, max: end });
        }],
      },
      legend: { markers: { width: 0, fill: (u, i) => (i === 0 ? "none" : theme().stages[pieces[i - 1].key]) } },
      series: [
        { label: "method", value: (u, row, series, index) => (index == null ? "" : shown[Math.floor(index / 2)].label) },
        ...pieces.map((piece) => ({
          label: named[piece.key],
          fill: () => theme().stages[piece.key],
          stroke: () => theme().stages[piece.key],
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.94, 26], align: 0 }),
          // The value of the run under the cursor, on either of its two bars.
          value: (u) => (u.cursor.idx == null ? "" : seconds(value(shown[Math.floor(u.cursor.idx / 2)], piece.key))),
        })),
      ],
    });
    return {
      id: "stages", options, data: [rows, ...pieces.map((piece) => piece.tops)], points: highest > 0 ? rows.length : 0,
      height: () => Math.max(printing ? 200 : 300, 70 + 40 * shown.length), empty: "No steps yet.",
      colours: () => pieces.map((piece) => theme().stages[piece.key]),
    };
  };

  // Paths of a series whose points are marks of its shape; `hollow(index)` says which are not filled.
  const marks = (its, hollow) => (u, series, first, last) => {
    const outline = new Path2D();
    const filled = new Path2D();
    const radius = 5 * devicePixelRatio;
    for (let i = first; i <= last; ++i) {
      if (u.data[series][i] == null) continue;
      const x = u.valToPos(u.data[0][i], "x", true);
      const y = u.valToPos(u.data[series][i], "y", true);
      for (const path of hollow(i) ? [outline] : [outline, filled]) {
        if (its.shape.length === 0) { path.moveTo(x + radius, y); path.arc(x, y, radius, 0, 2 * Math.PI); continue; }
        its.shape.forEach(([right, down], corner) => path[corner === 0 ? "moveTo" : "lineTo"](x + right * radius, y + down * radius));
        path.closePath();
      }
    }
    return { stroke: outline, fill: filled, flags: 3 };
  };
  const clip = (its) => its.shape.length === 0 ? "circle()"
    : `polygon(${its.shape.map((corner) => corner.map((at) => `${50 + 45 * at}%`).join(" ")).join(", ")})`;

  const rateDistortion = () => {
    // Results without a loss are listed in the caption: a logarithmic axis has no zero, and errors
    // of float rounding (about 1e-15) would squeeze all others into one corner.
    const lossless = (result) => result.nmse < 1e-12;
    // A method with several sets of options is one curve, in the colour of its first run.
    const families = new Map();
    for (const result of data.codec) {
      if (lossless(result)) continue;
      if (!families.has(result.method)) families.set(result.method, []);
      families.get(result.method).push(result);
    }
    const list = (before, results) => results.length === 0 ? ""
      : before + results.map((result) => `${result.label} (${digits(result.bits, 3)} bits per element)`).join(", ") + ". ";
    document.getElementById("codec-notes").textContent =
      list("Not drawn, because the error is 0 or float rounding: ", data.codec.filter(lossless))
      + list("Hollow, or not drawn: still in warm-up, so that some or all of the measured steps were uncompressed: ", data.codec.filter((result) => result.warmup));
    const chart = lines({
      id: "codec", height: 320, log: true, yLog: true, points: "all", idle: "point at a mark to see its options", empty: "All methods are lossless.",
      xName: "bits per element", xAxis: plain, xFormat: (bits) => (bits == null ? "" : digits(bits, 3)),
      yName: "normalised squared error", yTick: (value) => (value >= 1e-3 ? digits(value, 2) : value.toExponential(0)), yFormat: small,
      curves: [...families].map(([method, results]) => {
        results.sort((a, b) => a.bits - b.bits);
        const run = runs.find((one) => one.label === results[0].label) ?? runs.find((one) => one.method === method);
        return {
          label: method, look: run ? run.look : look(method, false), results,
          x: results.map((result) => result.bits), y: results.map((result) => result.nmse),
          value: (nmse, bits) => {
            if (bits == null && results.length === 1) return small(results[0].nmse);
            const result = results.find((one) => one.bits === bits);
            const options = result == null ? "" : result.label.startsWith(method + ":") ? result.label.slice(method.length + 1) : result.label;
            return nmse == null ? "" : (options && options !== method ? options + ": " : "") + small(nmse);
          },
        };
      }),
    });
    const options = chart.options;
    chart.options = () => {
      const all = options();
      all.cursor.hover = { prox: 30 };
      all.series.slice(1).forEach((series, i) => {
        const { look: its, results } = chart.curves[i];
        const hollow = (index) => results.find((one) => one.bits === chart.data[0][index])?.warmup;
        series.points = { ...series.points, width: 2, paths: marks(its, hollow) };
      });
      return all;
    };
    chart.built = (plot) => {
      const keys = [...plot.root.querySelectorAll(".u-legend .u-marker")].slice(-chart.curves.length);
      keys.forEach((key, i) => {
        key.style.background = colour(chart.curves[i].look);
        key.style.clipPath = clip(chart.curves[i].look);
      });
    };
    return chart;
  };

  const draw = () => {
    for (const chart of charts) chart.plot?.destroy();
    for (const chart of charts) { chart.plot = null; build(chart); }
    for (const key of document.querySelectorAll(".key")) key.style.background = stroke(runs[Number(key.dataset.run)].look);
  };

  // Returns, per colour of the chart, the number of pixels inside the axes that have it.
  const count = (chart) => {
    const box = chart.plot.bbox;
    const pixels = chart.plot.ctx.getImageData(box.left, box.top, box.width, box.height).data;
    return [...new Set(chart.colours())].map((text) => {
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
      let found = 0;
      for (let i = 0; i < pixels.length; i += 4) {
        const far = Math.abs(pixels[i] - red) + Math.abs(pixels[i + 1] - green) + Math.abs(pixels[i + 2] - blue);
        if (pixels[i + 3] > 128 && far < 24) found += 1;
      }
      return found;
    });
  };

  charts = [
    result("time", { xName: "training time", xAxis: seconds, xFormat: seconds, height: 380 }),
    result("bytes", { curves: curves("bytes").map(positive), xName: "bytes sent", xAxis: bytes, xFormat: (value) => bytes(value, 4), log: true }),
    result("step", { xName: "step", xAxis: plain, xFormat: plain }),
    lines({
      id: "loss", curves: curves("loss").map(positiveY), yLog: true, xName: "step", xAxis: plain, xFormat: plain, yName: "training loss",
      yFormat: plain, yTick: plain, height: 300, empty: "No steps yet.",
    }),
    stages(),
    ...(element("codec") ? [rateDistortion()] : []),
  ];
  draw();

  darkMode.addEventListener("change", draw);
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; draw(); });
  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => {
      if (printing) return;
      for (const chart of charts) {
        const width = widthOf(element(chart.id));
        if (chart.plot && chart.plot.width !== width) chart.plot.setSize({ width, height: heightOf(chart) });
      }
    });
  });

  // uPlot draws after the current script has ended, so count after that.
  setTimeout(() => {
    if (checking) {
      for (const chart of charts) element(chart.id).dataset.drawn = chart.plot ? count(chart).join(" ") : "";
    }
    document.documentElement.dataset.ready = "ok";
  }, 0);
})();
