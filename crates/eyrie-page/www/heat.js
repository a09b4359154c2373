// How much is sent, as one of few colours: by the logarithm, from the least to the most.

/** How many colours there are (`heat-0` is the least). */
export const COLOURS = 8;
/** What is less than this part of the most has the colour of the least. */
const SPAN = 1e4;

/** The colour for each amount up to `most`; null for nothing. */
export function scale(most, least) {
  const low = Math.log(Math.max(least, most / SPAN, 1));
  const high = Math.log(Math.max(most, 1));
  return (amount) => {
    if (amount <= 0) return null;
    if (high <= low) return COLOURS - 1;
    const share = (Math.log(amount) - low) / (high - low);
    return Math.min(COLOURS - 1, Math.max(0, Math.floor(share * COLOURS)));
  };
}
