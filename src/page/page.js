"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { columns, rows, sets } = data;
  const height = 27; // of a row, with its line
  const printed = 2000; // rows at most
  const count = columns.length ? rows[0].length : 0;

  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (n) => {
    let unit = 0;
    while (n >= 999.5 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return (n < 9.95 && unit ? n.toFixed(1) : n.toFixed(0)) + " " + units[unit];
  };
  const percent = (n) => (n >= 0.9995 && n < 1 ? "99.9%" : (n * 100).toFixed(1) + "%");
  const tell = {
    bytes, share: percent,
    number: (n) => n.toLocaleString("en"),
    decimal: (n) => n.toFixed(2),
    text: (s) => s,
  };
  const cell = (column, row) => {
    const value = rows[column][row];
    return value === null ? "\u2013" : tell[columns[column].kind](value);
  };

  // The rows that are shown, in their order.
  let order = [];
  let sorted = { column: -1, down: false };
  let only = null; // a set
  const texts = columns.map((c, i) => i).filter((i) => columns[i].kind === "text");
  let lower = null; // made when first asked for
  const input = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const everything = document.getElementById("all");
  const scroll = document.getElementById("scroll");
  const body = document.querySelector("#table tbody");
  const head = document.querySelector("#table thead tr");

  const choose = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !lower) {
      lower = new Array(count);
      for (let row = 0; row < count; row += 1) {
        lower[row] = texts.map((i) => rows[i][row]).join("\n").toLowerCase();
      }
    }
    order = [];
    const [from, to] = only === null ? [0, count] : [sets[only].from, sets[only].to];
    for (let row = from; row < to; row += 1) {
      if (!words.length || words.every((word) => lower[row].includes(word))) order.push(row);
    }
    const { column, down } = sorted;
    if (column >= 0) {
      const values = rows[column];
      const sign = down ? -1 : 1;
      const text = columns[column].kind === "text";
      order.sort((a, b) => {
        const [x, y] = [values[a], values[b]];
        if (x === y) return a - b;
        if (x === null || y === null) return x === null ? 1 : -1;
        return sign * (text ? (x < y ? -1 : 1) : x - y) || a - b;
      });
    }
    everything.hidden = only === null && !words.length;
    shown.textContent = order.length === count
      ? `${count.toLocaleString("en")} rows`
      : `${order.length.toLocaleString("en")} of ${count.toLocaleString("en")} rows`;
    document.getElementById("table").setAttribute("aria-rowcount", order.length + 1);
    scroll.scrollTop = 0;
    draw();
  };

  const gap = (pixels) => {
    const tr = document.createElement("tr");
    tr.className = "gap";
    tr.setAttribute("aria-hidden", "true");
    const td = tr.insertCell();
    td.colSpan = columns.length;
    td.style.height = pixels + "px";
    return tr;
  };

  const line = (at) => {
    const row = order[at];
    const tr = document.createElement("tr");
    tr.setAttribute("aria-rowindex", at + 2);
    if (data.first && data.first[row]) tr.className = "first";
    columns.forEach((column, i) => {
      const td = tr.insertCell();
      td.className = column.kind === "text" ? "text" : "number";
      const told = cell(i, row);
      if (i === 0 && data.link) {
        const a = document.createElement("a");
        a.href = data.link + encodeURIComponent(rows[0][row]);
        a.textContent = told;
        td.append(a);
      } else {
        td.textContent = told;
      }
      if (column.kind === "text") td.title = td.textContent;
    });
    return tr;
  };

  // Only rows in sight, and some around them, are in the document.
  const draw = () => {
    const most = Math.ceil(scroll.clientHeight / height) + 20;
    const from = Math.max(0, Math.min(order.length - most, Math.floor(scroll.scrollTop / height) - 10));
    const to = Math.min(order.length, from + most);
    const lines = [];
    if (from > 0) lines.push(gap(from * height));
    for (let at = from; at < to; at += 1) lines.push(line(at));
    if (to < order.length) lines.push(gap((order.length - to) * height));
    body.replaceChildren(...lines);
  };
  const drawForPrint = () => {
    const lines = [];
    for (let at = 0; at < Math.min(order.length, printed); at += 1) lines.push(line(at));
    if (order.length > printed) {
      const tr = document.createElement("tr");
      const td = tr.insertCell();
      td.colSpan = columns.length;
      td.textContent = `and ${(order.length - printed).toLocaleString("en")} more rows, not printed`;
      lines.push(tr);
    }
    body.replaceChildren(...lines);
  };

  columns.forEach((column, i) => {
    const th = document.createElement("th");
    th.scope = "col";
    th.className = column.kind === "text" ? "text" : "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.name;
    button.title = column.help;
    button.addEventListener("click", () => {
      const down = sorted.column === i ? !sorted.down : column.kind !== "text";
      sorted = { column: i, down };
      head.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      choose();
    });
    th.append(button);
    head.append(th);
  });

  let waiting = 0;
  scroll.addEventListener("scroll", () => {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); });
  });
  window.addEventListener("resize", draw);
  window.addEventListener("beforeprint", drawForPrint);
  window.addEventListener("afterprint", draw);
  let typing = 0;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(choose, 120);
  });
  const press = (set) => {
    document.querySelectorAll("#map .set").forEach((node) => {
      node.setAttribute("aria-pressed", String(set !== null && Number(node.dataset.set) === set));
    });
  };
  everything.addEventListener("click", () => {
    only = null;
    input.value = "";
    press(null);
    choose();
    input.focus();
  });

  // A squarified treemap (Bruls, Huizing and van Wijk, 2000): areas as near to squares as their order allows.
  const squarify = (sizes, x, y, w, h) => {
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const out = [];
    if (!(total > 0)) return out;
    const scale = (w * h) / total;
    let at = 0;
    while (at < sizes.length && w > 0 && h > 0) {
      const side = Math.min(w, h);
      let end = at;
      let sum = 0;
      let worst = Infinity;
      let least = Infinity;
      let largest = 0;
      while (end < sizes.length) {
        const area = sizes[end] * scale;
        const [s, lo, hi] = [sum + area, Math.min(least, area), Math.max(largest, area)];
        const ratio = Math.max((side * side * hi) / (s * s), (s * s) / (side * side * lo));
        if (ratio > worst) break;
        [sum, least, largest, worst] = [s, lo, hi, ratio];
        end += 1;
      }
      const thick = sum / side;
      let along = 0;
      for (; at < end; at += 1) {
        const long = (sizes[at] * scale) / thick;
        out.push(w >= h ? [x, y + along, thick, long] : [x + along, y, long, thick]);
        along += long;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    }
    return out;
  };

  const drawMap = () => {
    const section = document.getElementById("map-section");
    if (!section || !sets) return;
    const most = 160; // sets
    const cells = 60; // files of a set
    const drawn = sets.map((set, i) => i).filter((i) => sets[i].saves > 0)
      .sort((a, b) => sets[b].saves - sets[a].saves).slice(0, most);
    if (!drawn.length) return;
    section.hidden = false;
    const [w, h] = [1200, 420];
    const space = "http://www.w3.org/2000/svg";
    const make = (name, attributes) => {
      const node = document.createElementNS(space, name);
      Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
      return node;
    };
    const svg = make("svg", { viewBox: `0 0 ${w} ${h}` });
    const rect = ([x, y, width, high], more) => make("rect", {
      x: x.toFixed(2), y: y.toFixed(2), width: width.toFixed(2), height: high.toFixed(2), ...more,
    });
    squarify(drawn.map((i) => sets[i].saves), 0, 0, w, h).forEach((area, at) => {
      const set = sets[drawn[at]];
      const told = `${set.name}: ${set.to - set.from} files, could save ${bytes(set.saves)}`;
      const node = make("g", {
        class: "set", role: "button", tabindex: "0", "aria-pressed": "false", "aria-label": told, "data-set": drawn[at],
      });
      const title = make("title", {});
      title.textContent = told;
      node.append(title);
      const files = [];
      for (let row = set.from; row < Math.min(set.to, set.from + cells); row += 1) {
        files.push([Math.max(1, rows[data.size][row]), data.darkness ? rows[data.darkness][row] : 1]);
      }
      files.sort((a, b) => b[0] - a[0]);
      const colour = set.same ? "var(--same)" : "var(--saved)";
      squarify(files.map(([size]) => size), ...area).forEach((one, file) => {
        node.append(rect(one, { fill: colour, "fill-opacity": (0.2 + 0.75 * files[file][1]).toFixed(2) }));
      });
      node.append(rect(area, { class: "frame" }));
      const room = Math.floor(area[2] / 6.2);
      if (area[3] > 18 && room > 6) {
        const text = make("text", { x: area[0] + 5, y: area[1] + 14 });
        const name = set.name.split("/").pop();
        text.textContent = name.length > room ? name.slice(0, room - 1) + "\u2026" : name;
        node.append(text);
      }
      const open = () => {
        only = drawn[at];
        press(only);
        choose();
        scroll.scrollIntoView({ block: "nearest" });
      };
      node.addEventListener("click", open);
      node.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
      });
      svg.append(node);
    });
    document.getElementById("map").append(svg);
  };

  drawMap();
  choose();
})();
