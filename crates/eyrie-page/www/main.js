// Begins: which page the address means, and who may act.

import * as access from "./access.js";
import * as jobs from "./jobs.js";
import { JobPage } from "./job.js";

const main = document.getElementById("main");
const [, place, name] = location.pathname.split("/");
const page = place === "job" && name ? new JobPage(main, decodeURIComponent(name)) : null;
if (!page) jobs.show(main);
access.begin(() => page?.accessChanged());
