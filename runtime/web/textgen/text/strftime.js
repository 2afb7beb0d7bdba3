/** Dates as C's `strftime` writes them in English; the template library writes months in the browser's language. */

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June"],
  ...["July", "August", "September", "October", "November", "December"],
];

/** @param {string} format @param {Date} date in the local time zone */
export function strftime(format, date) {
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  const hour = date.getHours() % 12 || 12;
  /** @type {Record<string, string>} */
  const fields = {
    Y: String(date.getFullYear()).padStart(4, "0"),
    y: two(date.getFullYear() % 100),
    m: two(date.getMonth() + 1),
    d: two(date.getDate()),
    e: String(date.getDate()).padStart(2, " "),
    B: MONTHS[date.getMonth()],
    b: MONTHS[date.getMonth()].slice(0, 3),
    A: DAYS[date.getDay()],
    a: DAYS[date.getDay()].slice(0, 3),
    H: two(date.getHours()),
    I: two(hour),
    M: two(date.getMinutes()),
    S: two(date.getSeconds()),
    p: date.getHours() < 12 ? "AM" : "PM",
    "%": "%",
  };
  return format.replace(/%(-?)([A-Za-z%])/g, (all, short, field) => {
    const text = fields[field];
    return text === undefined ? all : short ? text.replace(/^[0 ]+(?=.)/, "") : text;
  });
}
