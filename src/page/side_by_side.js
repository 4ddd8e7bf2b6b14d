"use strict";
(() => {
  const height = 20; // of a row
  const marks = new Map(JSON.parse(document.getElementById("data").textContent).marks.map((m) => [m.region, m.rows]));
  const panes = [...document.querySelectorAll(".pane")];
  const together = document.getElementById("together");
  const told = document.getElementById("region");
  const order = panes.map((pane, side) => [...marks.keys()].filter((n) => marks.get(n)[side])
    .sort((x, y) => marks.get(x)[side][0] - marks.get(y)[side][0] || x - y));
  let current = 0;

  // A pane that the script has moved tells so itself, and is not to move the other.
  const moved = panes.map(() => -1);
  const move = (side, top) => {
    const pane = panes[side];
    const to = Math.round(Math.max(0, Math.min(top, pane.scrollHeight - pane.clientHeight)));
    if (to === Math.round(pane.scrollTop)) return;
    moved[side] = to;
    pane.scrollTop = to;
  };
  const middle = (pane) => pane.clientHeight / 3;

  const choose = (number, from, keep) => {
    const rows = marks.get(number);
    if (!rows) return;
    current = number;
    document.querySelectorAll(".chosen").forEach((node) => node.classList.remove("chosen"));
    document.querySelectorAll(`[data-r="${number}"]`).forEach((node) => node.classList.add("chosen"));
    panes.forEach((pane, side) => {
      if (!rows[side] || (keep && side === from)) return;
      // In line with the one that was clicked.
      const line = keep && rows[from] ? rows[from][0] * height - panes[from].scrollTop : middle(pane);
      move(side, rows[side][0] * height - line);
    });
    const place = order[from].indexOf(number) + 1;
    const missing = rows.some((row) => !row) ? ", not shown on one side" : "";
    told.textContent = `region ${number}, ${place} of ${order[from].length}${missing}`;
  };

  const step = (side, by) => {
    const list = order[side];
    if (!list.length) return;
    const at = list.indexOf(current);
    const next = at < 0 ? (by > 0 ? 0 : list.length - 1) : (at + by + list.length) % list.length;
    choose(list[next], side, false);
  };

  // Between regions the other side moves on as fast as its own rows need.
  const follow = (side) => {
    const other = 1 - side;
    const y = (panes[side].scrollTop + middle(panes[side])) / height;
    let before = [0, 0];
    let after = null;
    order[side].forEach((number) => {
      const rows = marks.get(number);
      if (!rows[other] || after) return;
      if (rows[side][0] > y) { after = [rows[side][0], rows[other][0]]; return; }
      const inside = Math.min(y, rows[side][1] + 1) - rows[side][0];
      before = [rows[side][0] + inside, Math.min(rows[other][0] + inside, rows[other][1] + 1)];
    });
    const forward = after && after[1] >= before[1] && after[0] > before[0];
    const share = forward ? (y - before[0]) / (after[0] - before[0]) : 0;
    const at = forward ? before[1] + share * (after[1] - before[1]) : before[1] + (y - before[0]);
    // At the very top both begin.
    move(other, panes[side].scrollTop <= 0 ? 0 : at * height - middle(panes[other]));
  };

  panes.forEach((pane, side) => {
    // Told once a frame.
    pane.addEventListener("scroll", () => {
      const ours = Math.round(pane.scrollTop) === moved[side];
      moved[side] = -1;
      if (!ours && together.checked) follow(side);
    });
    pane.addEventListener("click", (event) => {
      const part = event.target.closest("[data-r]");
      if (part && !String(getSelection())) choose(Number(part.dataset.r), side, true);
    });
    pane.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const to = { n: 1, j: 1, p: -1, k: -1 }[event.key];
      if (to) { event.preventDefault(); step(side, to); }
      if (event.key === "o") { event.preventDefault(); panes[1 - side].focus({ preventScroll: true }); }
    });
  });
  document.querySelectorAll("#bands [data-r]").forEach((band) => {
    band.addEventListener("click", () => choose(Number(band.dataset.r), 0, false));
  });
  document.getElementById("next").addEventListener("click", () => step(0, 1));
  document.getElementById("previous").addEventListener("click", () => step(0, -1));
})();
