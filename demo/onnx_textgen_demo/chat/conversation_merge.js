// One conversation that was changed in two tabs of the browser: the result has the messages of both.
// Conversations are as Python writes them. Messages are only appended; one that
// exists changes only while it grows, or when it is deleted, and keeps its place.

const textOf = (value) => // the same for the same content, whatever the order of its names
  JSON.stringify(value, (_, each) => (each?.constructor === Object ? Object.fromEntries(Object.entries(each).sort()) : each));
const isSame = (one, other) => textOf(one) === textOf(other);
const hasSameMessages = (one, other) => isSame([one?.nodes, one?.system], [other?.nodes, other?.system]);

// `base`: the version that both came from. `kept`: what another tab saved; its messages keep their places. `mine`: this tab's.
const merged = (base, kept, mine) => {
  const known = Math.min(base.nodes.length, kept.nodes.length);
  const moved = (place) => (place < known ? place : place - known + kept.nodes.length);
  const isMine = (place) => place < known && place < mine.nodes.length && !isSame(mine.nodes[place], base.nodes[place]);
  const shared = kept.nodes.map((node, place) => (isMine(place) ? mine.nodes[place] : node));
  const added = mine.nodes.slice(known).map((node) => ({ ...node, parent: moved(node.parent) }));
  const { system } = isSame(mine.system, base.system) ? kept : mine;
  return { ...kept, system, nodes: [...shared, ...added], leaf: moved(mine.leaf) };
};

// The messages of the branch that is shown, by their places.
const pathOf = ({ nodes, leaf }) => {
  const path = [];
  for (let place = leaf; place >= 0 && path.length <= nodes.length; place = nodes[place].parent) path.unshift(place);
  return path;
};

// The last message of the latest branch through a message, or through the one before it if it was deleted.
const latestThrough = (nodes, place) => {
  if (place >= 0 && isDeleted(nodes[place].message)) return latestThrough(nodes, nodes[place].parent);
  const branch = new Set([place]);
  nodes.forEach((node, index) => { if (branch.has(node.parent)) branch.add(index); });
  return Math.max(...[...branch].filter((index) => index === place || !isDeleted(nodes[index].message)));
};
