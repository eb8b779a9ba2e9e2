// Tic-tac-toe in the browser, with the rules of environments/tic_tac_toe. A board is an array of nine: "x", "o" or ".".

const SQUARES = [..."123456789"];
const LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
const countOf = (board, mark) => board.filter((cell) => cell === mark).length;
const toMove = (board) => (countOf(board, "x") === countOf(board, "o") ? "x" : "o");

function winnerOf(board) {
  const line = LINES.find(([a, b, c]) => board[a] !== "." && board[a] === board[b] && board[b] === board[c]);
  return line ? board[line[0]] : null;
}

const freeSquares = (board) => (winnerOf(board) ? [] : SQUARES.filter((_, i) => board[i] === "."));
const afterSquare = (board, square) => board.with(Number(square) - 1, toMove(board));

/** The minimax value for x: 1 won, 0 drawn, -1 lost. */
const known = new Map();
function valueOf(board) {
  const key = board.join("");
  if (!known.has(key)) {
    const [won, free] = [winnerOf(board), freeSquares(board)];
    const values = free.map((square) => valueOf(afterSquare(board, square)));
    const best = toMove(board) === "x" ? Math.max : Math.min;
    known.set(key, won ? (won === "x" ? 1 : -1) : free.length ? best(...values) : 0);
  }
  return known.get(key);
}

/** Players without a model: a board and random numbers -> a free square. */
const PLAYERS = {
  random: (board, random) => {
    const free = freeSquares(board);
    return free[Math.floor(random() * free.length)];
  },
  perfect: (board, random) => {
    const worth = freeSquares(board).map((square) => [square, valueOf(afterSquare(board, square)) * (toMove(board) === "x" ? 1 : -1)]);
    const best = worth.filter(([, value]) => value === Math.max(...worth.map((each) => each[1])));
    return best[Math.floor(random() * best.length)][0];
  },
};

const RULES_TIC_TAC_TOE = {
  columns: 3,
  answers: SQUARES,
  marks: () => [".", "x", "o"],
  show: (mark) => ({ x: "✕", o: "◯" })[mark] ?? "",
  legal: freeSquares,
  refuse(board) {
    const more = countOf(board, "x") - countOf(board, "o");
    if (more === 0 || more === 1) return null;
    return `${countOf(board, "x")} ✕ and ${countOf(board, "o")} ◯ can't come from a game: ✕ begins, and the sides take turns.`;
  },
  over(board) {
    if (winnerOf(board)) return `${this.show(winnerOf(board))} has three in a row.`;
    return freeSquares(board).length ? null : "A draw: the board is full.";
  },
  render: (board) => `${toMove(board)} to move\n${[0, 3, 6].map((i) => board.slice(i, i + 3).join(" ")).join("\n")}`,
};
