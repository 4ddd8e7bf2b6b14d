"use strict";
(() => {
  const every = 2000; // milliseconds
  const most = 900; // half an hour
  const space = "http://www.w3.org/2000/svg";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (n) => {
    let unit = 0;
    while (n >= 999.5 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return (n < 9.95 && unit ? n.toFixed(1) : n.toFixed(0)) + " " + units[unit];
  };
  const count = (n) => n.toLocaleString("en");
  const charts = [
    { title: "Files, by what is in them", tell: bytes, lines: [["logical_bytes", "in files", "mark"], ["unique_bytes", "different", "saved"], ["stored_bytes", "stored", "same"]] },
    { title: "Waiting to be taken in", tell: count, lines: [["pending", "files pending", "same"], ["resting", "resting", "once"]] },
    { title: "Memory of the program that answers", tell: bytes, lines: [["memory", "resident", "mark"]] },
  ];
  const box = document.getElementById("live");
  const told = document.getElementById("live-told");
  const [w, h] = [600, 110];
  const make = (name, attributes) => {
    const node = document.createElementNS(space, name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    return node;
  };
  charts.forEach((chart) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = chart.title;
    caption.append(name);
    chart.labels = chart.lines.map(([, , kind]) => {
      const label = document.createElement("span");
      label.className = kind;
      caption.append(label);
      return label;
    });
    const svg = make("svg", { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img", "aria-label": chart.title });
    chart.paths = chart.lines.map(([, , kind]) => {
      const path = make("polyline", { class: kind, points: "" });
      svg.append(path);
      return path;
    });
    figure.append(caption, svg);
    box.append(figure);
  });

  const seen = []; // [time, status]
  const draw = () => {
    const from = seen[0][0];
    const span = Math.max(60000, seen[seen.length - 1][0] - from);
    charts.forEach((chart) => {
      const largest = Math.max(1, ...seen.flatMap(([, status]) => chart.lines.map(([key]) => status[key])));
      chart.lines.forEach(([key, name], i) => {
        const point = ([time, status]) => {
          const x = ((time - from) / span) * w;
          const y = h - 4 - (status[key] / largest) * (h - 12);
          return `${x.toFixed(1)},${y.toFixed(1)}`;
        };
        const points = seen.map(point);
        // One point is no line.
        if (points.length === 1) points.push(`2,${points[0].split(",")[1]}`);
        chart.paths[i].setAttribute("points", points.join(" "));
        chart.labels[i].textContent = `${name} ${chart.tell(seen[seen.length - 1][1][key])}`;
      });
    });
  };
  const ask = async () => {
    try {
      const answer = await fetch("status.json", { cache: "no-store" });
      const status = await answer.json();
      if (!answer.ok) throw new Error(status.error);
      seen.push([Date.now(), status]);
      if (seen.length > most) seen.shift();
      draw();
      const minutes = Math.floor((Date.now() - seen[0][0]) / 60000);
      told.textContent = `every ${every / 1000} s, for ${minutes ? `${minutes} min` : "less than a minute"}`;
    } catch (error) {
      told.textContent = `no answer: ${error.message}`;
    }
    setTimeout(ask, every);
  };
  ask();
})();
