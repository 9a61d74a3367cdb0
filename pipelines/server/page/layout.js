// A layered layout of a plan: each node is right of its inputs, and edges bend around the nodes between. A plan
// that is too wide continues in a row below.

const [WIDTH, HEIGHT, ACROSS, DOWN, ROOM] = [146, 80, 36, 18, 14];

export const size = { width: WIDTH, height: HEIGHT };

/** Orders a layer by the mean place of its neighbours in another one. */
function sort(layer, neighbours) {
  const middle = cell => {
    const places = neighbours(cell);
    return places.length ? places.reduce((sum, place) => sum + place, 0) / places.length : cell.place;
  };
  const wanted = new Map(layer.map(cell => [cell, middle(cell)]));
  layer.sort((a, b) => wanted.get(a) - wanted.get(b) || a.place - b.place);
  place(layer);
}

function place(layer) {
  const tall = cell => (cell.id ? HEIGHT + DOWN : ROOM + DOWN);
  const total = layer.reduce((sum, cell) => sum + tall(cell), -DOWN);
  let y = -total / 2;
  for (const cell of layer) {
    cell.place = y + (tall(cell) - DOWN) / 2;
    y += tall(cell);
  }
}

/** Layers of cells, with cells without an id where an edge passes a layer. */
function layers(nodes) {
  const cells = new Map();
  for (const node of nodes) {
    const inputs = node.inputs.filter(id => cells.has(id));
    const layer = Math.max(-1, ...inputs.map(id => cells.get(id).layer)) + 1;
    cells.set(node.id, { id: node.id, layer, before: [], after: [], place: 0 });
  }
  const all = [];
  const put = cell => { (all[cell.layer] ??= []).push(cell); };
  cells.forEach(put);
  const edges = [];
  for (const node of nodes) {
    for (const id of node.inputs) {
      if (!cells.has(id)) continue;
      const [from, to] = [cells.get(id), cells.get(node.id)];
      const through = [from];
      for (let layer = from.layer + 1; layer < to.layer; layer++) {
        through.push({ id: null, layer, before: [], after: [], place: 0 });
        put(through.at(-1));
      }
      through.push(to);
      for (let at = 1; at < through.length; at++) {
        through[at - 1].after.push(through[at]);
        through[at].before.push(through[at - 1]);
      }
      edges.push({ from: id, to: node.id, through });
    }
  }
  return { cells, all, edges };
}

/** A way from a row's end to the beginning of the next row. */
function around(x, y, between, left, to) {
  const r = 8;
  const [out, back] = [x + 14, left - 14];
  return `M${x},${y} H${out - r} Q${out},${y} ${out},${y + r} V${between - r} Q${out},${between} ${out - r},${between}` +
    ` H${back + r} Q${back},${between} ${back},${between + r} V${to - r} Q${back},${to} ${back + r},${to} H${left}`;
}

/**
 * Places nodes { id, inputs }, in order, in rows of at most `most` pixels; `below(ids)` is the room that a
 * row with these nodes needs below it. Gives { width, height, nodes: Map of id → { x, y, row }, rows: the
 * lower end of each, edges: [{ from, to, path }] }.
 */
export function layout(nodes, most, below) {
  const { cells, all, edges } = layers(nodes);
  all.forEach(place);
  for (let sweep = 0; sweep < 6; sweep++) {
    for (const layer of all.slice(1)) sort(layer, cell => cell.before.map(other => other.place));
    for (const layer of all.slice(0, -1).reverse()) sort(layer, cell => cell.after.map(other => other.place));
  }
  const [step, margin, gap] = [WIDTH + ACROSS, 24, 34];
  const fit = Math.max(2, Math.floor((most - 2 * margin + ACROSS) / step));
  const each = Math.ceil(all.length / Math.ceil(all.length / fit));
  const row = layer => Math.floor(layer / each);
  const rows = [];
  let height = 8;
  for (let first = 0; first < all.length; first += each) {
    const inRow = all.slice(first, first + each).flat();
    const half = cell => (cell.id ? HEIGHT / 2 : 4);
    const top = Math.min(...inRow.map(cell => cell.place - half(cell)));
    const bottom = Math.max(...inRow.map(cell => cell.place + half(cell)));
    rows.push({ shift: height - top, top: height, end: height + bottom - top });
    height = rows.at(-1).end + below(inRow.map(cell => cell.id)) + gap;
  }
  const x = layer => margin + (layer % each) * step;
  const y = cell => cell.place + rows[row(cell.layer)].shift;
  const found = new Map([...cells.values()].map(cell => [cell.id, { x: x(cell.layer), y: y(cell) - HEIGHT / 2, row: row(cell.layer) }]));
  const paths = edges.map(({ from, to, through }) => {
    let path = '';
    for (let at = 1; at < through.length; at++) {
      const [a, b] = [through[at - 1], through[at]];
      const [right, left] = [x(a.layer) + WIDTH, x(b.layer)];
      const middle = (right + left) / 2;
      path += row(a.layer) === row(b.layer) ? `M${right},${y(a)} C${middle},${y(a)} ${middle},${y(b)} ${left},${y(b)} `
        : `${around(right, y(a), rows[row(b.layer)].top - gap / 2, left, y(b))} `;
      if (!b.id) path += `H${left + WIDTH} `;
    }
    return { from, to, path };
  });
  return { width: 2 * margin + Math.min(each, all.length) * step - ACROSS, height: height - gap + 8, nodes: found, rows: rows.map(({ end }) => end), edges: paths };
}
