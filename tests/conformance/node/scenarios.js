'use strict';

// The scenarios, as far as the official Node.js client's API goes.
// The Python driver has the same names and tells the same facts.

const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const { PATIENCE_MS, errorFacts, rest, sql, tags } = require('./run');

const LIMIT = 4 * 1024 * 1024;
const HOLD_S = 300; // a consumer holds what it acknowledges after an interruption: however long that takes,
const GIVE_BACK_S = 30; // and what comes again after it
const ENOUGH = 1200;
const SCENARIOS = {};

/** A body that differs from place to place. */
function pattern(size) {
  return Buffer.from(Uint8Array.from({ length: size }, (_, index) => index % 251));
}

function inSeconds(seconds) {
  return new Date((Math.floor(Date.now() / 1000) + seconds) * 1000);
}

// sending and receiving

SCENARIOS.normal = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  const properties = new Map([
    [ 'colour', 'blue' ],
    [ 'größe', 'übergroß 🐇' ],
    [ 'spaced key', ' a b ' ],
    [ 'k'.repeat(200), 'v'.repeat(2000) ],
  ]);
  await run.sent(producer, { topic, body: 'hello', tag: 'TagA', keys: [ 'k1', 'k2' ], properties }, { label: 'full' });
  // Every send of this client is asynchronous; these two are on their way at the same time.
  await Promise.all([
    run.sent(producer, { topic, body: 'grüße, 世界 🌍', tag: '标签', keys: [ 'schlüssel' ] }, { label: 'async' }),
    run.sent(producer, { topic, body: 'bare' }, { label: 'bare' }),
  ]);
  await run.receiveUntil(consumer, 3);
  await run.quiet(consumer);
};

/** One message is larger than what this client's gRPC takes; the others must come all the same. */
SCENARIOS.body_too_big = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  for (const size of [ 1, LIMIT, 65_536, LIMIT - 65_536 ]) {
    await run.sent(producer, { topic, body: pattern(size) });
  }
  await run.tryTo('one byte over', () => producer.send({ topic, body: pattern(LIMIT + 1) }));
  await run.receiveUntil(consumer, 3);
  await run.quiet(consumer);
};

SCENARIOS.batch_receive = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  await Promise.all(Array.from({ length: 80 }, (_, n) => run.sent(producer, { topic, body: `m${n}` })));
  await run.receiveUntil(consumer, 80, { maximum: 100 });
  await run.quiet(consumer);
};

SCENARIOS.early_receive = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  for (let n = 0; n < 8; n += 1) {
    await run.sent(producer, { topic, body: `m${n}` });
    const consumer = await run.simple(group, { [topic]: null });
    await run.receiveUntil(consumer, 1);
    await run.close(consumer);
  }
};

SCENARIOS.subscriptions = async run => {
  const { topic: one, topic2: two, group } = run.params;
  const producer = await run.producer([ one, two ]);
  const consumer = await run.simple(group, { [one]: null }, { awaitS: 1 });
  await consumer.subscribe(two, tags('wanted'));
  for (const topic of [ one, two ]) {
    await run.sent(producer, { topic, body: `${topic} wanted`, tag: 'wanted' });
    await run.sent(producer, { topic, body: `${topic} other`, tag: 'other' });
  }
  await run.receiveUntil(consumer, 3);
  consumer.unsubscribe(one);
  run.say('unsubscribed');
  for (const topic of [ one, two ]) await run.sent(producer, { topic, body: `${topic} again`, tag: 'wanted' });
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer);
};

/** The client dials `dial`; every address it is told must be that one. */
async function dialling(run) {
  const { topic, group, dial: endpoint } = run.params;
  const producer = await run.producer([ topic ], { endpoint });
  const consumer = await run.simple(group, { [topic]: null }, { endpoint });
  const receipt = await run.sent(producer, { topic, body: 'by name' });
  const [ message ] = await run.receiveUntil(consumer, 1);
  for (const { facade } of [ receipt.endpoints, message.endpoints ]) run.say('told', { facade, dialled: endpoint });
}

SCENARIOS.by_name = dialling;
SCENARIOS.by_address = dialling;

SCENARIOS.first_use = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([]);
  await run.sent(producer, { topic, body: 'first' });
  const consumer = await run.simple(group, { [topic]: null });
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer);
};

// waiting

SCENARIOS.empty_poll = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const patient = await run.simple(group, { [topic]: null }, { awaitS: 20 });
  const hasty = await run.simple(group, { [topic]: null }, { awaitS: 1 });
  const waiting = run.receiveUntil(patient, 1, { by: 'patient' });
  await run.receive(hasty, { by: 'hasty' });
  await run.receive(hasty, { by: 'hasty' });
  await run.close(hasty);
  await run.sent(producer, { topic, body: 'at last' });
  await waiting;
};

/** Two consumers of a broadcast group, each there before the first message. */
SCENARIOS.broadcast = async run => {
  const { topic, group } = run.params;
  const consumers = {};
  for (const by of [ 'one', 'two' ]) {
    consumers[by] = await run.simple(group, { [topic]: null }, { awaitS: 1 });
    await run.receive(consumers[by], { by });
  }
  const producer = await run.producer([ topic ]);
  for (let n = 0; n < 20; n++) await run.sent(producer, { topic, body: `m${n}` });
  for (const by of [ 'one', 'two' ]) {
    await run.receiveUntil(consumers[by], 20, { by });
    await run.quiet(consumers[by]);
  }
};

/** Consumers of both kinds wait longer than one poll on an empty topic, then a message comes. */
SCENARIOS.idle = async run => {
  const { topic, topic2: pushed, group, group2 } = run.params;
  let seen = false;
  const producer = await run.producer([ topic, pushed ]);
  const simple = await run.simple(group, { [topic]: null }, { awaitS: 20 });
  await run.push(group2, { [pushed]: null }, message => {
    run.saw(message, 'push');
    seen = true;
    return true;
  });
  await run.receive(simple, { by: 'empty' });
  // No wait for a fact: being idle is what is tried here. The push consumer's own first poll began a little later.
  await rest(4000);
  for (const where of [ topic, pushed ]) await run.sent(producer, { topic: where, body: 'at last' });
  await run.receiveUntil(simple, 1, { by: 'simple' });
  await run.waitFor(() => seen);
};

// order

async function sendInOrder(run, producer, topic, groups, count) {
  for (let n = 0; n < count; n += 1) {
    for (const messageGroup of groups) await run.sent(producer, { topic, body: `${messageGroup}${n}`, messageGroup });
  }
}

SCENARIOS.fifo_simple = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  await sendInOrder(run, producer, topic, 'abcde', 8);
  await run.receiveUntil(consumer, 40);
  await run.quiet(consumer);
};

/** A held message holds its own message group and no other; when it comes back, order goes on. */
SCENARIOS.fifo_held = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null }, { awaitS: 1 });
  await run.sent(producer, { topic, body: 'a0', messageGroup: 'a' });
  await run.receiveUntil(consumer, 1, { invisibleS: 60, ack: false, by: 'first' });
  for (const [ messageGroup, body ] of [[ 'a', 'a1' ], [ 'b', 'b0' ], [ 'b', 'b1' ]]) {
    await run.sent(producer, { topic, body, messageGroup });
  }
  await run.receiveUntil(consumer, 2, { by: 'meanwhile' });
  await run.receiveUntil(consumer, 2, { by: 'afterwards' });
  await run.quiet(consumer);
};

SCENARIOS.fifo_push = async run => {
  const { topic, group } = run.params;
  const finished = [];
  const failed = [];
  await run.push(group, { [topic]: null }, message => {
    const body = message.body.toString();
    const good = ![ 'a2', 'c0' ].includes(body) || failed.includes(body);
    run.saw(message, '', { consumed: good });
    (good ? finished : failed).push(body);
    return good;
  });
  const producer = await run.producer([ topic ]);
  await sendInOrder(run, producer, topic, 'abcd', 8);
  await run.waitFor(() => finished.length >= 32);
};

// light queues, and what is urgent

SCENARIOS.lite = async run => {
  const { topic, group } = run.params;
  const finished = [];
  const failed = [];
  const consumer = await run.lite(group, topic, message => {
    const body = message.body.toString();
    const good = body !== 'room-1 2' || failed.includes(body);
    run.saw(message, '', { consumed: good, lite: message.liteTopic ?? '' });
    (good ? finished : failed).push(body);
    return good;
  });
  const producer = await run.producer([ topic ]);
  const sendTo = async (rooms, from, to) => {
    for (let n = from; n < to; n++) {
      for (const room of rooms) {
        await run.sent(producer, { topic, body: `${room} ${n}`, liteTopic: room }, { lite: room });
      }
    }
  };
  await run.tryTo('an illegal name', () => consumer.subscribeLite('no good'));
  await consumer.subscribeLite('room-1');
  await consumer.subscribeLite('room-2');
  await sendTo([ 'room-1', 'room-2', 'room-3' ], 0, 5);
  await run.waitFor(() => finished.length >= 10);
  run.say('two rooms');
  await consumer.unsubscribeLite('room-2');
  await sendTo([ 'room-1', 'room-2' ], 5, 7);
  await run.waitFor(() => finished.length >= 12);
  await consumer.subscribeLite('room-3');
  await run.waitFor(() => finished.length >= 17);
};

SCENARIOS.priority = async run => {
  const { topic, anything, group } = run.params;
  const producer = await run.producer([ topic, anything ]);
  await producer.send({ topic: anything, body: Buffer.from('urgent'), priority: 3 });
  run.say('anything goes');
  for (const priority of [ 2, 6, 1, 4 ]) {
    for (const n of [ 0, 1 ]) {
      await run.sent(producer, { topic, body: `p${priority} ${n}`, priority }, { priority });
    }
  }
  const consumer = await run.simple(group, { [topic]: null });
  for (let taken = 0; taken < 8; taken++) {
    for (const message of await run.receiveUntil(consumer, 1, { maximum: 1, by: 'one by one' })) {
      run.say('urgent', { body: message.body.toString(), priority: message.priority ?? -1 });
    }
  }
  await run.quiet(consumer);
};

// time

SCENARIOS.delay = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  for (const [ body, seconds ] of [[ 'later', 4 ], [ 'soon', 2 ], [ 'past', -60 ]]) {
    const deliveryTimestamp = inSeconds(seconds);
    await run.sent(producer, { topic, body, deliveryTimestamp }, { due: deliveryTimestamp.getTime() });
  }
  await run.receiveUntil(consumer, 3);
  await run.quiet(consumer);
};

SCENARIOS.recall = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null }, { awaitS: 1 });
  const deliveryTimestamp = inSeconds(40); // until then one of both is recalled
  const doomed = await run.sent(producer, { topic, body: 'doomed', deliveryTimestamp });
  const spared = await run.sent(producer, { topic, body: 'spared', deliveryTimestamp });
  run.say('recalled', { id: (await producer.recallMessage(topic, doomed.recallHandle)).messageId });
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer, { untilMs: deliveryTimestamp.getTime() + 2000 });
  await run.tryTo('recall again', () => producer.recallMessage(topic, doomed.recallHandle));
  await run.tryTo('recall delivered', () => producer.recallMessage(topic, spared.recallHandle));
  await run.tryTo('recall nonsense', () => producer.recallMessage(topic, 'nonsense'));
};

// transactions

const unknown = () => TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;

function toldCheck(run) {
  return message => {
    const body = message.body.toString();
    run.say('checked', { id: message.messageId, body, tag: message.tag ?? '' });
    return body === 'bad' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
  };
}

SCENARIOS.transaction = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ], { check: unknown });
  const consumer = await run.simple(group, { [topic]: null });
  const ends = {};
  for (const body of [ 'committed', 'rolled back' ]) {
    ends[body] = producer.beginTransaction();
    await run.sent(producer, { topic, body, tag: 't', keys: [ 'k' ] }, {}, ends[body]);
  }
  await run.quiet(consumer, { by: 'too early' });
  await ends['rolled back'].rollback();
  await ends.committed.commit();
  run.say('ended');
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer, { untilMs: Date.now() + 4000 });
};

/** The same end again is answered OK, the other end and an unknown id are refused. */
SCENARIOS.transaction_twice = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ], { check: unknown });
  const consumer = await run.simple(group, { [topic]: null });
  const end = producer.beginTransaction();
  const message = { topic, body: 'once' };
  const receipt = await run.sent(producer, message, {}, end);
  await run.tryTo('commit', () => end.commit());
  await run.tryTo('commit again', () => end.commit());
  await run.tryTo('roll back after commit', () => end.rollback());
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer);
  await run.tryTo('unknown id', () => producer.endTransaction(
    receipt.endpoints, message, receipt.messageId, 'nonsense', TransactionResolution.COMMIT));
};

SCENARIOS.transaction_check = async run => {
  const { topic, group } = run.params;
  const checked = new Set();
  const tell = toldCheck(run);
  const check = message => {
    checked.add(message.body.toString());
    return tell(message);
  };
  const producer = await run.producer([ topic ], { check });
  const consumer = await run.simple(group, { [topic]: null });
  for (const body of [ 'good', 'bad' ]) {
    await run.sent(producer, { topic, body, tag: 't' }, {}, producer.beginTransaction());
  }
  await run.receiveUntil(consumer, 1);
  await run.waitFor(() => checked.has('bad')); // brokers ask about one after the other
  await run.quiet(consumer, { untilMs: Date.now() + 10_000 });
};

SCENARIOS.transaction_unnamed = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([], { check: toldCheck(run) });
  const consumer = await run.simple(group, { [topic]: null });
  await run.sent(producer, { topic, body: 'good' }, {}, producer.beginTransaction());
  await run.receiveUntil(consumer, 1);
};

/** Sends a half message and dies at once, the whole process of it. */
SCENARIOS.transaction_abandon = async run => {
  const { topic } = run.params;
  const producer = await run.producer([ topic ], { check: toldCheck(run) });
  await run.sent(producer, { topic, body: 'orphan' }, {}, producer.beginTransaction());
  process.kill(process.pid, 'SIGKILL');
};

SCENARIOS.transaction_successor = async run => {
  const { topic, group } = run.params;
  await run.producer([ topic ], { check: toldCheck(run) });
  const consumer = await run.simple(group, { [topic]: null });
  await run.receiveUntil(consumer, 1);
};

// filters

SCENARIOS.tags = async run => {
  const { topic, group, group2 } = run.params;
  const producer = await run.producer([ topic ]);
  const some = await run.simple(group, { [topic]: tags('a || c || AaAa') });
  const every = await run.simple(group2, { [topic]: tags('*') });
  for (const tag of [ 'a', 'b', 'c', 'BBBB', '' ]) { // BBBB has the Java hash of AaAa
    await run.sent(producer, { topic, body: tag || 'none', tag });
  }
  await run.receiveUntil(some, 2, { by: 'some' });
  await run.receiveUntil(every, 5, { by: 'every' });
  await run.quiet(some);
};

SCENARIOS.sql92 = async run => {
  const { topic, group, group2 } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: sql(
    "(price BETWEEN 10 AND 20 AND colour IN ('red', 'grün')) OR TAGS = 'vip' OR weight IS NOT NULL") });
  for (const [ body, tag, properties ] of [
    [ 'yes: red 10', '', { price: '10', colour: 'red' }],
    [ 'yes: grün 20', '', { price: '20', colour: 'grün' }],
    [ 'no: red 21', '', { price: '21', colour: 'red' }],
    [ 'no: blue 15', '', { price: '15', colour: 'blue' }],
    [ 'no: red', '', { colour: 'red' }],
    [ 'yes: vip', 'vip', {}],
    [ 'yes: weight', '', { weight: '1' }],
  ]) {
    await run.sent(producer, { topic, body, tag, properties: new Map(Object.entries(properties)) });
  }
  await run.receiveUntil(consumer, 4);
  await run.quiet(consumer);
  const broken = await run.simple(group2, { [topic]: sql('price >') }, { awaitS: 1 });
  await run.tryTo('illegal expression', () => run.receive(broken));
};

// attempts

SCENARIOS.redelivery = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  await run.sent(producer, { topic, body: 'again' });
  const [ first ] = await run.receiveUntil(consumer, 1, { invisibleS: 10, ack: false });
  const [ second ] = await run.receiveUntil(consumer, 1, { invisibleS: 600, ack: false });
  await run.tryTo('ack by expired handle', () => consumer.ack(first));
  await run.tryTo('change by expired handle', () => consumer.changeInvisibleDuration(first, 30_000));
  await run.acked(consumer, second);
  await run.tryTo('ack again', () => consumer.ack(second));
  second.receiptHandle = 'nonsense';
  await run.tryTo('ack by malformed handle', () => consumer.ack(second));
  await run.quiet(consumer);
};

SCENARIOS.change_invisible = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null }, { awaitS: 1 });
  for (const body of [ 'longer', 'shorter' ]) await run.sent(producer, { topic, body });
  const held = {};
  for (const message of await run.receiveUntil(consumer, 2, { invisibleS: 60, ack: false })) {
    held[message.body.toString()] = message;
  }
  const start = Date.now();
  for (const [ body, seconds ] of [[ 'longer', 300 ], [ 'shorter', 1 ]]) {
    await consumer.changeInvisibleDuration(held[body], seconds * 1000);
    run.say('changed', { id: held[body].messageId, seconds });
  }
  await run.receiveUntil(consumer, 1, { by: 'early' });
  await run.quiet(consumer, { untilMs: start + 61_000 });
  await run.acked(consumer, held.longer);
  await run.quiet(consumer);
};

SCENARIOS.nack = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([ topic ]);
  const consumer = await run.simple(group, { [topic]: null });
  await run.sent(producer, { topic, body: 'no' });
  for (let n = 0; n < 3; n += 1) {
    for (const message of await run.receiveUntil(consumer, 1, { ack: false })) {
      await consumer.changeInvisibleDuration(message, 1000);
      run.say('changed', { id: message.messageId, seconds: 1 });
    }
  }
  await run.receiveUntil(consumer, 1);
  await run.quiet(consumer);
};

SCENARIOS.push_consumer = async run => {
  const { topic, group } = run.params;
  const seen = new Set();
  await run.push(group, { [topic]: tags('wanted') }, message => {
    run.saw(message);
    seen.add(message.messageId);
    return true;
  });
  const producer = await run.producer([ topic ]);
  for (let n = 0; n < 50; n += 1) {
    await run.sent(producer, { topic, body: `m${n}`, tag: 'wanted' });
    await run.sent(producer, { topic, body: `other${n}`, tag: 'other' });
  }
  await run.waitFor(() => seen.size >= 50);
  await run.quiet(await run.simple(group, { [topic]: tags('wanted') }));
};

SCENARIOS.push_shared = async run => {
  const { topic, group } = run.params;
  let seen = 0;
  for (const by of [ 'one', 'two' ]) {
    await run.push(group, { [topic]: null }, message => {
      run.saw(message, by);
      seen += 1;
      return true;
    });
  }
  const producer = await run.producer([ topic ]);
  for (let n = 0; n < 100; n += 1) await run.sent(producer, { topic, body: `m${n}` });
  await run.waitFor(() => seen >= 100);
};

SCENARIOS.push_retry = async run => {
  const { topic, group } = run.params;
  let consumed = false;
  await run.push(group, { [topic]: null }, message => {
    const good = message.deliveryAttempt >= 3;
    run.saw(message, '', { consumed: good });
    if (message.deliveryAttempt === 2) throw new Error('a listener that throws has failed as well');
    consumed ||= good;
    return good;
  });
  const producer = await run.producer([ topic ]);
  await run.sent(producer, { topic, body: 'third time lucky' });
  await run.waitFor(() => consumed);
  await run.quiet(await run.simple(group, { [topic]: null }));
};

/** Read the group's dead-letter topic, which exists once the first message is in it. */
async function deadLetters(run, count) {
  const { group, group2 } = run.params;
  const dead = `%DLQ%${group}`;
  let found = 0;
  await run.waitFor(async () => {
    try {
      const consumer = await run.simple(group2, { [dead]: null }, { awaitS: 1 });
      for (const message of await run.receive(consumer, { by: 'dead' })) {
        await run.acked(consumer, message);
        found += 1;
      }
      await run.close(consumer);
    } catch (error) {
      run.say('no dead letters yet', { error: errorFacts(error) });
      await rest(200);
    }
    return found >= count;
  });
}

SCENARIOS.dead_letter = async run => {
  const { topic, group } = run.params;
  let attempts = 0;
  await run.push(group, { [topic]: null }, message => {
    run.saw(message);
    attempts += 1;
    return false;
  });
  const producer = await run.producer([ topic ]);
  await run.sent(producer, { topic, body: 'poison', tag: 't', keys: [ 'k' ], properties: new Map([[ 'p', 'v' ]]) });
  await run.waitFor(() => attempts >= 2);
  await deadLetters(run, 1);
  await run.quiet(await run.simple(group, { [topic]: null }, { awaitS: 1 }));
};

SCENARIOS.dead_letter_fifo = async run => {
  const { topic, group } = run.params;
  let consumed = 0;
  const producer = await run.producer([ topic ]);
  for (const body of [ 'before', 'poison', 'after' ]) await run.sent(producer, { topic, body, messageGroup: 'a' });
  await run.push(group, { [topic]: null }, message => {
    const good = message.body.toString() !== 'poison';
    run.saw(message, '', { consumed: good });
    if (good) consumed += 1;
    return good;
  });
  await run.waitFor(() => consumed >= 2);
  await deadLetters(run, 1);
};

SCENARIOS.many_receives = async run => {
  const { topic, group } = run.params;
  let arrived = () => {};
  await run.push(group, { [topic]: null }, () => {
    arrived(true);
    return true;
  });
  const producer = await run.producer([ topic ]);
  let count = 0;
  while (count < ENOUGH) {
    const arrival = new Promise(resolve => { arrived = resolve; });
    await producer.send({ topic, body: Buffer.from(`m${count}`) });
    if (!await Promise.race([ arrival, rest(PATIENCE_MS) ])) break;
    count += 1;
  }
  run.say('counted', { count });
};

// refusals

SCENARIOS.wrong_type = async run => {
  const { topic: plain, topic2: ordered, topic3: several } = run.params;
  const producer = await run.producer([ plain, ordered, several ], { check: () => TransactionResolution.ROLLBACK });
  const body = Buffer.from('x');
  const deliveryTimestamp = inSeconds(1);
  const half = async topic => {
    const transaction = producer.beginTransaction();
    await producer.send({ topic, body }, transaction);
    await transaction.rollback();
  };
  await run.tryTo('FIFO to NORMAL', () => producer.send({ topic: plain, body, messageGroup: 'g' }));
  await run.tryTo('DELAY to NORMAL', () => producer.send({ topic: plain, body, deliveryTimestamp }));
  await run.tryTo('TRANSACTION to NORMAL', () => half(plain));
  await run.tryTo('NORMAL to FIFO', () => producer.send({ topic: ordered, body }));
  await run.tryTo('NORMAL to several', () => producer.send({ topic: several, body }));
  await run.tryTo('FIFO to several', () => producer.send({ topic: several, body, messageGroup: 'g' }));
  await run.tryTo('DELAY to several', () => producer.send({ topic: several, body, deliveryTimestamp }));
  await run.tryTo('TRANSACTION to several', () => half(several));
};

SCENARIOS.unknown_topic = async run => {
  const { topic, group } = run.params;
  const producer = await run.producer([]);
  await run.tryTo('send', () => producer.send({ topic, body: Buffer.from('x') }));
  await run.tryTo('subscribe', async () => (await run.simple(group, {})).subscribe(topic, tags('*')));
  await run.tryTo('receive', async () => run.receive(await run.simple(group, { [topic]: null })));
};

SCENARIOS.unknown_group = async run => {
  const { topic, group } = run.params;
  const consumer = await run.simple(group, { [topic]: null });
  await run.tryTo('receive', () => run.receive(consumer));
};

SCENARIOS.illegal_names = async run => {
  const { topic } = run.params;
  const producer = await run.producer([]);
  const body = Buffer.from('x');
  await run.tryTo('topic with a space', () => producer.send({ topic: 'a b', body }));
  await run.tryTo('topic too long', () => producer.send({ topic: 't'.repeat(128), body }));
  await run.tryTo('group with a space', () => run.simple('a b', { [topic]: null }));
  await run.tryTo('group too long', async () =>
    run.receive(await run.simple('g'.repeat(256), { [topic]: null }, { awaitS: 1 })));
};

SCENARIOS.illegal_messages = async run => {
  const { topic, topic2: ordered, topic3: delayed } = run.params;
  const producer = await run.producer([ topic, ordered, delayed ]);
  const send = (step, fields, where = topic) =>
    run.tryTo(step, () => producer.send({ topic: where, body: Buffer.from('x'), ...fields }));
  const many = count => new Map(Array.from({ length: count }, (_, n) => [ `p${n}`, 'v' ]));
  await send('129 properties', { properties: many(129) });
  await send('128 properties', { properties: many(128) });
  await send('properties of 16385 bytes', { properties: new Map([[ 'p', 'v'.repeat(16_384) ]]) });
  await send('properties of 16384 bytes', { properties: new Map([[ 'p', 'v'.repeat(16_383) ]]) });
  await send('reserved property', { properties: new Map([[ 'UNIQ_KEY', 'v' ]]) });
  await send('control character in a property', { properties: new Map([[ 'p', 'a\u0001b' ]]) });
  await send('control character in the tag', { tag: 'a\u0002b' });
  await send('control character in a key', { keys: [ 'a\u0002b' ] });
  await send('blank key', { keys: [ ' ' ] });
  await send('tag with a bar', { tag: 'a|b' });
  await send('message group of 64 bytes', { messageGroup: 'g'.repeat(64) }, ordered);
  await send('message group of 63 bytes', { messageGroup: 'g'.repeat(63) }, ordered);
  await send('delay of 25 hours', { deliveryTimestamp: inSeconds(25 * 3600) }, delayed);
  await send('empty body', { body: Buffer.alloc(0) });
};

SCENARIOS.illegal_receives = async run => {
  const { topic, group, group2 } = run.params;
  const producer = await run.producer([ topic ]);
  await run.sent(producer, { topic, body: 'x' });
  const consumer = await run.simple(group, { [topic]: null }, { awaitS: 1 });
  await run.tryTo('invisible for 9 s', () => run.receive(consumer, { invisibleS: 9 }));
  await run.tryTo('invisible for 13 h', () => run.receive(consumer, { invisibleS: 13 * 3600 }));
  await run.tryTo('no messages asked', () => run.receive(consumer, { maximum: 0 }));
  const [ message ] = await run.receiveUntil(consumer, 1, { ack: false });
  await run.tryTo('change to 13 h', () => consumer.changeInvisibleDuration(message, 13 * 3_600_000));
  await run.tryTo('ack after a refused change', () => consumer.ack(message));
  const wrong = await run.simple(group2, { [topic]: tags('||') }, { awaitS: 1 });
  await run.tryTo('tag expression of bars', () => run.receive(wrong));
};

// interruptions

/** As an application does it: again, until the gateway is back and the action does not answer false. */
function patiently(run, action) {
  return run.waitFor(async () => {
    try {
      return await action() !== false;
    } catch (error) {
      run.say('unanswered', { error: errorFacts(error) });
      await rest(100);
      return false;
    }
  });
}

/** Sends all the time, whether or not anybody answers. */
class Steady {
  answered = new Set();
  stopped = false;

  constructor(run, producer, topic) {
    this.done = this.#send(run, producer, topic);
  }

  async #send(run, producer, topic) {
    for (let n = 1; !this.stopped; n += 1) {
      try {
        this.answered.add((await run.sent(producer, { topic, body: `m${n}` }, { by: 'steady' })).messageId);
      } catch (error) {
        run.say('unanswered', { error: errorFacts(error) });
      }
      await rest(20);
    }
  }

  answeredMore() {
    const goal = this.answered.size + 10;
    return () => this.answered.size >= goal;
  }
}

SCENARIOS.interrupted = async run => {
  const { topic, topic2: heldTopic, group, group2 } = run.params;
  const seen = new Set();
  const producer = await run.producer([ topic, heldTopic ]);
  await run.push(group, { [topic]: null }, message => {
    run.saw(message, 'background');
    seen.add(message.messageId);
    return true;
  });
  const simple = await run.simple(group2, { [heldTopic]: null }, { awaitS: 1 });
  const steady = new Steady(run, producer, topic);
  for (const name of [ 'one', 'two' ]) await interruption(run, name, producer, simple, steady);
  steady.stopped = true;
  await steady.done;
  await run.waitFor(() => [ ...steady.answered ].every(id => seen.has(id)));
  await run.quiet(simple);
};

// The gateway begins to drain at `ready`; another one is there at `go`, and the first one drains on.
SCENARIOS.drained = async run => {
  const { topic, group } = run.params;
  const seen = new Set();
  const producer = await run.producer([ topic ]);
  await run.push(group, { [topic]: null }, message => {
    run.saw(message);
    seen.add(message.messageId);
    return true;
  });
  const steady = new Steady(run, producer, topic);
  await run.waitFor(steady.answeredMore());
  await run.waitFor(() => seen.size > 0);
  run.say('ready');
  await run.go();
  await run.waitFor(steady.answeredMore());
  steady.stopped = true;
  await steady.done;
  await run.waitFor(() => [ ...steady.answered ].every(id => seen.has(id)));
};

async function interruption(run, name, producer, simple, steady) {
  const { topic2: heldTopic, topic3: delayedTopic, topic4: halfTopic, group2 } = run.params;
  const delayed = await run.simple(group2, { [delayedTopic]: null }, { awaitS: 1 });
  const halves = await run.simple(group2, { [halfTopic]: null }, { awaitS: 1 });
  const gather = async (consumer, count, by, ack = true, invisibleS = GIVE_BACK_S) => {
    const found = [];
    await patiently(run, async () => {
      for (const message of await run.receive(consumer, { maximum: 1, invisibleS, by })) {
        found.push(message);
        if (ack) await run.acked(consumer, message);
      }
      return found.length >= count;
    });
    return found;
  };
  const checkedProducer = () => run.producer([ halfTopic ], { check: toldCheck(run) });

  for (let n = 0; n < 6; n += 1) {
    await run.sent(producer, { topic: heldTopic, body: `${name} ${n}` }, { by: 'held' });
  }
  const held = await gather(simple, 3, name, false, HOLD_S);
  await gather(simple, 3, name, false);
  for (const message of held.slice(0, 2)) await run.acked(simple, message);
  const deliveryTimestamp = inSeconds(6);
  await run.sent(producer, { topic: delayedTopic, body: `${name} delayed`, deliveryTimestamp },
    { due: deliveryTimestamp.getTime() });
  const first = await checkedProducer();
  await run.sent(first, { topic: halfTopic, body: `${name} half` }, {}, first.beginTransaction());
  await run.waitFor(steady.answeredMore());
  run.say('ready');
  await run.go();
  await patiently(run, () => run.acked(simple, held[2]));
  await patiently(run, checkedProducer);
  await gather(simple, 3, `${name} again`);
  await gather(delayed, 1, `${name} delayed`);
  await gather(halves, 1, `${name} half`);
  await run.waitFor(steady.answeredMore());
  await run.close(delayed);
  await run.close(halves);
}

module.exports = { SCENARIOS };
