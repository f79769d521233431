'use strict';

// Runs named scenarios with the official Node.js client and tells what it saw, one JSON line per fact.
//
// By hand:        node driver.js 127.0.0.1:8081 normal topic=T group=G
// By the tests:   node driver.js 127.0.0.1:8081, then on standard input lines of
//                 `run ID SCENARIO key=value …` and `go ID`; the end of input ends the process after the runs.
//
// Facts are those of the Python driver, by the same names.

const readline = require('node:readline');
const { Run, errorFacts } = require('./run');
const { SCENARIOS } = require('./scenarios');

function parameters(pairs) {
  return Object.fromEntries(pairs.map(pair => {
    const equals = pair.indexOf('=');
    return [ pair.slice(0, equals), pair.slice(equals + 1) ];
  }));
}

async function perform(run, scenario) {
  try {
    await scenario(run);
    run.say('finished');
    await run.closeAll();
    run.say('end');
  } catch (error) {
    run.say('crash', { error: errorFacts(error), trace: String(error.stack) });
  }
}

async function serve(endpoint) {
  const runs = new Map();
  const performed = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [ verb, id, name, ...pairs ] = line.trim().split(/ +/);
    if (verb === 'go') {
      runs.get(id).release();
    } else {
      const run = new Run(id, endpoint, parameters(pairs));
      runs.set(id, run);
      performed.push(perform(run, SCENARIOS[name]));
    }
  }
  await Promise.all(performed);
}

async function main() {
  const [ endpoint, name, ...pairs ] = process.argv.slice(2);
  if (name) {
    await perform(new Run('1', endpoint, parameters(pairs)), SCENARIOS[name]);
  } else {
    await serve(endpoint);
  }
  process.exit(0); // the client's timers would hold the process
}

main();
