"use strict";
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent);
  const layout = { margin: { l: 60, r: 20, t: 30, b: 45 }, font: { family: "system-ui, sans-serif", size: 12 }, hovermode: "closest" };
  const settings = { displaylogo: false, responsive: true };

  // -- curves of all runs in one chart ---------------------------------------------------------------------------------------------
  const byId = (id) => document.getElementById(id);
  const [quantity, second, table, log] = ["quantity", "second", "table", "log"].map(byId);
  const preferred = { epochs: ["test/hard/psnr", "test/soft/psnr"], steps: ["loss", ""] };

  function fillQuantities() {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run[table.value])))].filter((n) => n !== "epoch" && n !== "step");
    for (const [select, blank, wanted] of [[quantity, [], preferred[table.value][0]], [second, [""], preferred[table.value][1]]]) {
      select.replaceChildren(...[...blank, ...names].map((name) => new Option(name || "(nothing else)", name)));
      select.value = names.includes(wanted) ? wanted : select.options[0]?.value ?? "";
    }
  }

  function drawCurves() {
    const axis = table.value === "epochs" ? "epoch" : "step";
    const names = [quantity.value, second.value].filter(Boolean);
    const same = (run) => runs.filter((other) => other.colour === run.colour).indexOf(run);
    const traces = runs.flatMap((run) => names.map((name, i) => [run, name, i]))
      .filter(([run, name]) => run[table.value][name])
      .map(([run, name, i]) => ({
        x: run[table.value][axis], y: run[table.value][name], name: `${run.name}: ${name}`, mode: "lines+markers", connectgaps: false,
        line: { color: run.colour, dash: i ? "dash" : "solid", width: 2 }, opacity: 1 - 0.35 * Math.min(same(run), 2),
        marker: { size: 5, symbol: same(run) },
      }));
    Plotly.react("chart", traces, {
      ...layout, xaxis: { title: { text: axis } }, yaxis: { title: { text: names[0] ?? "" }, type: log.checked ? "log" : "linear" },
      showlegend: true, legend: { orientation: "h", y: -0.2 },
    }, settings);
  }
  table.addEventListener("change", () => { fillQuantities(); drawCurves(); });
  for (const control of [quantity, second, log]) control.addEventListener("change", drawCurves);
  if (!runs.some((run) => Object.keys(run.steps).length)) table.querySelector("[value=steps]").remove();
  fillQuantities();
  drawCurves();

  // -- pictures --------------------------------------------------------------------------------------------------------------------
  for (const section of document.querySelectorAll(".run")) {
    section.querySelector(".gain").addEventListener("input", (e) => section.style.setProperty("--gain", e.target.value));
    section.querySelector(".zoom").addEventListener("input", (e) => section.style.setProperty("--zoom", `${e.target.value}px`));
  }

  // -- codebook of each run --------------------------------------------------------------------------------------------------------
  function codebook(section, run) {
    const find = (name) => section.querySelector(`.${name}`);
    const [levelBox, order, code, atlas, detail, usage, map] = ["level", "order", "code", "atlas", "detail", "usage", "map"].map(find);
    let level, tiles, places;

    const share = (id) => (100 * level.seen[id] / level.seen.reduce((a, b) => a + b, 0)).toFixed(3);

    function tile(id, scale, label) {
      const button = document.createElement("button");
      const place = places.get(id), width = level.tile * scale;
      button.className = "tile";
      button.title = label ?? `code ${id}: ${level.seen[id]} tokens`;
      button.style.cssText = `width:${width}px;height:${width}px`;
      if (place !== undefined) {
        const [row, column] = [Math.floor(place / level.per_row), place % level.per_row];
        button.style.backgroundImage = `url(${level.sprite})`;
        button.style.backgroundSize = `${level.per_row * width}px auto`;
        button.style.backgroundPosition = `-${column * width}px -${row * width}px`;
      }
      button.addEventListener("click", () => choose(id));
      return button;
    }

    function figure(content, text) {
      const box = document.createElement("figure"), caption = document.createElement("figcaption");
      caption.textContent = text;
      box.append(content, caption);
      return box;
    }

    function choose(id) {
      code.value = id;
      for (const [other, element] of tiles) element.classList.toggle("chosen", other === id);
      const text = document.createElement("div");
      const title = document.createElement("strong");
      title.textContent = `code ${id}`;
      const facts = document.createElement("div");
      facts.textContent = `${level.seen[id]} of the tokens behind this atlas (${share(id)} %), ${level.counts[id]} on the test split`;
      text.append(title, facts);
      const neighbours = level.neighbours[id].map((other, i) => figure(tile(other, 1.5), `${other}, distance ${level.distances[id][i].toFixed(3)}`));
      detail.replaceChildren(figure(tile(id, 4), places.has(id) ? `${level.filled[id]} nearest patches` : "not in the atlas"), text, ...neighbours);
      detail.dataset.code = id;
      Plotly.restyle(map, { x: [[level.plane[id][0]]], y: [[level.plane[id][1]]], text: [[`code ${id}`]] }, [1]);
    }

    function drawAtlas() {
      const ids = [...level.shown];
      if (order.value === "id") ids.sort((a, b) => a - b);
      if (order.value === "rare") ids.reverse();
      tiles = new Map(ids.map((id) => [id, tile(id, 1)]));
      atlas.replaceChildren(...tiles.values());
      if (level.shown.length < level.size) {
        const note = document.createElement("p");
        note.textContent = `The ${level.shown.length} most used of ${level.size} codes.`;
        atlas.prepend(note);
      }
    }

    function drawCharts() {
      const sorted = [...level.counts].sort((a, b) => b - a), total = sorted.reduce((a, b) => a + b, 0);
      Plotly.react(usage, [
        { x: sorted.map((_, i) => i + 1), y: sorted, type: "bar", marker: { color: run.colour, line: { width: 0 } }, name: "tokens", hovertemplate: "rank %{x}: %{y} tokens<extra></extra>" },
        { x: [1, level.size], y: [total / level.size, total / level.size], mode: "lines", line: { color: "#8c8c8c", width: 1 }, name: "all codes equally", hoverinfo: "skip" },
      ], { ...layout, bargap: 0, title: { text: "Use on the test split", font: { size: 13 } }, xaxis: { title: { text: "codes, sorted by use" } }, yaxis: { title: { text: "tokens" } }, showlegend: false }, settings);
      const size = level.seen.map((n) => 5 + 9 * Math.sqrt(n / Math.max(...level.seen, 1)));
      const percent = level.variance.map((v) => `${(100 * v).toFixed(0)} %`);
      Plotly.react(map, [
        { x: level.plane.map((p) => p[0]), y: level.plane.map((p) => p[1]), mode: "markers", type: "scatter", text: level.seen.map((n, id) => `code ${id}: ${n} tokens`), hoverinfo: "text",
          marker: { size, color: level.seen, colorscale: "Viridis", showscale: true, colorbar: { title: { text: "tokens" }, thickness: 12 }, line: { width: 0.5, color: "#fff" } } },
        { x: [], y: [], mode: "markers", hoverinfo: "text", marker: { size: 18, color: "rgba(0,0,0,0)", line: { width: 3, color: "#d55e00" } } },
      ], { ...layout, title: { text: "Map of the codes (PCA)", font: { size: 13 } }, xaxis: { title: { text: `first component, ${percent[0]} of the variance` } }, yaxis: { title: { text: `second, ${percent[1]}` } }, showlegend: false }, settings);
    }

    function show() {
      level = run.levels[levelBox.value];
      places = new Map(level.shown.map((id, place) => [id, place]));
      code.max = level.size - 1;
      drawCharts();
      drawAtlas();
      choose(level.shown[0]);
    }

    levelBox.addEventListener("change", show);
    order.addEventListener("change", () => { drawAtlas(); choose(Number(code.value)); });
    code.addEventListener("change", () => {
      const id = Number(code.value);
      if (Number.isInteger(id) && id >= 0 && id < level.size && code.value !== "") choose(id);
    });
    show();
    map.on("plotly_click", (event) => { if (event.points[0].curveNumber === 0) choose(event.points[0].pointNumber); });
  }
  runs.forEach((run, i) => { if (run.levels.length) codebook(byId(`run${i}`), run); });
  document.body.dataset.ready = "true";
})();
