// What can be done to a job: first a dialog says what will happen and by which command it could be
// done as well; then the job is asked, and what it answers is shown. Nothing is done without that.

import { headers } from "./access.js";
import { choose, toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, counted, time } from "./units.js";
import { DOING, RUNNING } from "./state.js";

/** Asks a job for something; shows what is waited for and what came of it. Returns the answer, or
null. */
async function ask(job, request, waits, done) {
  const waiting = toast(waits, "waits");
  try {
    const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/request`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(request),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    if (done) toast(typeof done === "function" ? done(said) : done, "good");
    return said;
  } catch (error) {
    toast(error.message, "bad");
    return null;
  } finally {
    waiting.close();
  }
}

/** What can be done to a job that this state tells of. */
export class Actions {
  constructor(job, state) {
    this.job = job;
    this.state = state;
  }

  async confirmed(question, request, waits, done) {
    const given = await choose(question);
    if (given) await ask(this.job, request(given), waits, done);
  }

  checkpoint(rank = null) {
    const one = rank !== null;
    const whose = one ? `rank ${rank}` : `all ${counted(this.state.ranks.length, "rank")}`;
    const pause = this.state.figures?.image_pause;
    const still = pause ? ` Images of this job took ${time(pause)} of that so far, in the mean.` : "";
    return this.confirmed(
      {
        title: one ? `Take an image of rank ${rank}` : "Take a checkpoint now",
        will: [
          `An image of ${whose} is taken now and stored.`,
          `${one ? "The rank stands still for its image" : "Each rank stands still for its own image only"}; the others compute on.${still}`,
        ],
        command: `eyrie checkpoint ${this.job}${one ? ` ${rank}` : ""}`,
        button: "Take it",
      },
      () => ({ request: "checkpoint", rank }),
      `An image of ${whose} is being taken…`,
      checkpointsInWords,
    );
  }

  /** `to`: the node, or undefined to let the user choose one. */
  migrate(rank, to) {
    const from = this.state.ranks[rank].node;
    const size = this.state.ranks[rank].image?.bytes;
    const targets = this.state.nodes.filter((node) => node.state === "up" && node.node !== from && !node.drained);
    const where = [["", "where Eyrie places it"], ...targets.map((node) => [String(node.node), this.state.nodeName(node.node)])];
    const known = to !== undefined;
    return this.confirmed(
      {
        title: known ? `Move rank ${rank} to ${this.state.nodeName(to)}` : `Move rank ${rank}`,
        will: [
          `Rank ${rank} leaves ${this.state.nodeName(from)}. Its memory goes ahead in rounds while it computes${size ? ` (its last image has ${bytes(size)})` : ""}.`,
          "For the last round it stands still, about 50 ms as a rule, and goes on at the new node. The others compute on.",
        ],
        fields: known ? [] : [{ name: "to", label: "To", options: where, value: "" }],
        command: `eyrie migrate ${this.job} ${rank}${known ? ` --to ${to}` : ""}`,
        button: "Move it",
      },
      (given) => {
        const node = known ? to : given.to === "" ? null : Number(given.to);
        return { request: "migrate", ranks: [rank], to: node };
      },
      `Rank ${rank} moves…`,
      `Rank ${rank} has moved.`,
    );
  }

  drain(node) {
    const ranks = this.state.ranksOn(node).filter((rank) => rank.doing !== "finished");
    const roles = this.state.nodes[node].roles;
    const leave = [counted(ranks.length, "rank"), ...roles].join(", ");
    return this.confirmed(
      {
        title: `Drain ${this.state.nodeName(node)}`,
        will: [
          `What is there goes to other nodes while it runs: ${leave}.`,
          "No rank comes there until the node is undrained. When it is free it can be switched off.",
        ],
        command: `eyrie drain ${this.job} ${node}`,
        button: "Drain it",
        danger: true,
      },
      () => ({ request: "drain", node }),
      `${this.state.nodeName(node)} is being drained…`,
      `${this.state.nodeName(node)} is free.`,
    );
  }

  undrain(node) {
    return this.confirmed(
      {
        title: `Undrain ${this.state.nodeName(node)}`,
        will: ["Ranks may come to the node again. It stays as it is until one needs a place."],
        command: `eyrie undrain ${this.job} ${node}`,
        button: "Undrain it",
      },
      () => ({ request: "undrain", node }),
      `${this.state.nodeName(node)} is being undrained…`,
      `${this.state.nodeName(node)} takes ranks again.`,
    );
  }

  async balance() {
    const seconds = (secs) => ({ secs, nanos: 0 });
    const goal = { balance: { payback: seconds(60) } };
    const measured = await ask(
      this.job,
      { request: "measure", over: seconds(5), goal },
      "For 5 s it is measured what each rank computes. Nothing moves yet.",
    );
    if (!measured) return;
    const { proposal } = measured;
    const moves = proposal.ranks.filter((rank) => rank.to !== null);
    const percent = (share) => `${Math.round(share * 100)} %`;
    const list = h("ul", {}, moves.map((rank) => h("li", {}, `rank ${rank.rank}: ${this.state.nodeName(rank.node)} → ${this.state.nodeName(rank.to)}, may cost ${time(rank.cost)}`)));
    const question = {
      title: moves.length ? `Move ${counted(moves.length, "rank")} to balance the nodes` : "Nothing moves",
      will: moves.length ? [`The busiest node has ${percent(proposal.busiest)} to do now, and ${percent(proposal.then)} afterwards. Ranks move live, one after another.`, proposal.why] : [proposal.why],
      extra: moves.length ? list : null,
      command: `eyrie balance ${this.job}`,
      button: moves.length ? "Move them" : undefined,
    };
    await this.confirmed(
      question,
      () => ({ request: "rearrange", moves: moves.map((rank) => [rank.rank, rank.to]), drains: proposal.left }),
      "Ranks move…",
      "The nodes are balanced.",
    );
  }

  stop() {
    return this.confirmed(
      {
        title: `Stop job ${this.job}`,
        will: [
          "Each rank is imaged, then all stop, and the job is saved in the directory of its --images. Then it ends.",
          "eyrie run --resume-from goes on with it. A job that was started without --images refuses, and goes on.",
        ],
        command: `eyrie stop ${this.job}`,
        button: "Stop the job",
        danger: true,
      },
      () => ({ request: "stop" }),
      "The job is being saved…",
      "The job is saved and has ended.",
    );
  }

  /** `fault`: as `eyrie inject` has it, without the time. */
  inject(fault, title, will) {
    return this.confirmed(
      {
        title,
        will,
        command: `eyrie inject ${this.job} ${fault}@0s`,
        button: "Let it happen",
        danger: true,
      },
      () => ({ request: "inject", spec: `${fault}@0s` }),
      `${fault}…`,
      `Injected: ${fault}.`,
    );
  }

  killRank(rank) {
    const will = [`The process of rank ${rank} is killed at once.`, this.wayBack([this.state.ranks[rank]])];
    return this.inject(`kill-rank=${rank}`, `Kill rank ${rank}`, will);
  }

  dropConnection(rank) {
    const will = [`The connections of rank ${rank} to its routers break. It connects again and goes on; nothing is lost.`];
    return this.inject(`drop-connection=${rank}`, `Drop the connections of rank ${rank}`, will);
  }

  killNode(node) {
    const ranks = this.state.ranksOn(node);
    const will = [
      `The agent of ${this.state.nodeName(node)} and its ${counted(ranks.length, "rank")} are killed at once. The node is lost for the rest of the job.`,
      this.wayBack(ranks),
    ];
    return this.inject(`kill-node=${node}`, `Kill ${this.state.nodeName(node)}`, will);
  }

  freezeNode(node) {
    const ranks = this.state.ranksOn(node);
    const will = [
      `The agent of ${this.state.nodeName(node)} and its ${counted(ranks.length, "rank")} are stopped, as by a host that hangs. After the heartbeat timeout the node is declared dead.`,
      this.wayBack(ranks),
    ];
    return this.inject(`freeze-node=${node}`, `Freeze ${this.state.nodeName(node)}`, will);
  }

  /** From where these ranks come back. */
  wayBack(ranks) {
    const names = (some) => (some.length > 5 ? counted(some.length, "rank") : `rank${some.length === 1 ? "" : "s"} ${some.map((rank) => rank.rank).join(", ")}`);
    const unprotected = ranks.filter((rank) => rank.unprotected);
    if (unprotected.length) return `Of ${names(unprotected)} the log is not kept at present: the job ends.`;
    const anew = ranks.filter((rank) => !rank.image);
    if (!ranks.length) return "No rank is there.";
    if (anew.length) return `The job goes on. There is no image yet of ${names(anew)}: all is executed again from the start.`;
    const doing = ranks.filter((rank) => !RUNNING.includes(rank.doing)).map((rank) => `rank ${rank.rank} ${DOING[rank.doing].word}`);
    const besides = doing.length && doing.length < 4 ? ` At present ${doing.join(", ")}.` : "";
    return `The job goes on: ${names(ranks)} ${ranks.length === 1 ? "is" : "are"} restored from ${ranks.length === 1 ? `image ${ranks[0].image.number}` : "their last images"}, and only what followed is executed again.${besides}`;
  }
}

function checkpointsInWords({ checkpoints }) {
  const failed = checkpoints.filter((one) => one.failed !== undefined);
  const stored = checkpoints.length - failed.length;
  const good = `${counted(stored, "image")} ${stored === 1 ? "is" : "are"} stored.`;
  if (!failed.length) return good;
  return `${good} None of rank ${failed[0].rank}: ${failed[0].failed}${failed.length > 1 ? `, and of ${failed.length - 1} more` : ""}`;
}
