'use strict';

// One run of one scenario: its parameters, its clients, its voice.

const crypto = require('node:crypto');
const grpc = require('@grpc/grpc-js');
const {
  ConsumeResult, FilterExpression, LitePushConsumerImpl, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
// The client shows its enumerations nowhere else.
const { Code, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

// A client repeats a send that is not answered in time (as shipped 3 s); not every broker knows repeats.
const REQUEST_MS = 45_000;
const PATIENCE_MS = 240_000; // how long a scenario waits for something that must come
// How long a consumer holds what it acknowledges. Longer than any scenario: when the time is over a RocketMQ that
// stood still gives out again what was acknowledged in time, before it reads that it was.
const HOLD_S = 600;
const ALL = new FilterExpression('*');
const QUIET = { debug() {}, info() {}, warn() {}, error() {}, close() {} };

function nameOf(enumeration, number) {
  return Object.keys(enumeration).find(name => enumeration[name] === number) ?? String(number);
}

/** An error as a fact: its class, the name of its status code (empty: the client's own), its text. */
function errorFacts(error) {
  let code = '';
  const texts = [];
  for (let link = error; link && texts.length < 10; link = link.cause) {
    texts.push(String(link.message ?? link));
    const inText = /\(code: (\d+)\)$/.exec(texts.at(-1)); // recalling throws a plain error
    const number = typeof link.code === 'number' ? link.code : inText && Number(inText[1]);
    if (!code && typeof number === 'number') {
      code = number < 100 ? `GRPC_${nameOf(grpc.status, number)}` : nameOf(Code, number);
    }
  }
  return { type: error.constructor?.name ?? '', code, text: texts.join(' <- ') };
}

function bodyFacts(body) {
  return {
    size: body.length,
    sha256: crypto.createHash('sha256').update(body).digest('hex'),
    body: body.length <= 200 ? body.toString() : '',
  };
}

function rest(ms) {
  return new Promise(resolve => setTimeout(resolve, ms));
}

const tags = expression => new FilterExpression(expression, FilterType.TAG);
const sql = expression => new FilterExpression(expression, FilterType.SQL);

class Run {
  #clients = [];
  #gone = 0;
  #waiting = [];

  constructor(id, endpoint, params) {
    this.id = id;
    this.endpoint = endpoint;
    this.params = params;
  }

  // telling

  say(fact, data = {}) {
    process.stdout.write(`${JSON.stringify({ run: this.id, fact, at: Date.now(), ...data })}\n`);
  }

  saw(message, by = '', data = {}) {
    this.say('received', {
      by,
      id: message.messageId,
      topic: message.topic,
      ...bodyFacts(message.body),
      tag: message.tag ?? '',
      keys: [ ...message.keys ].sort(),
      properties: Object.fromEntries(message.properties),
      group: message.messageGroup ?? '',
      attempt: message.deliveryAttempt,
      corrupted: message.corrupted === true,
      ...data,
    });
  }

  /** Do something that may be refused: tells `done` or `refused` with the error. */
  async tryTo(step, action) {
    try {
      const result = await action();
      this.say('done', { step });
      return result;
    } catch (error) {
      this.say('refused', { step, error: errorFacts(error) });
      return undefined;
    }
  }

  // going on

  release() {
    this.#gone += 1;
    this.#waiting.splice(0).forEach(resolve => resolve());
  }

  async go() {
    while (this.#gone === 0) await new Promise(resolve => this.#waiting.push(resolve));
    this.#gone -= 1;
  }

  // clients

  /** What every client is made with. */
  #settings(endpoint = this.endpoint) {
    return {
      endpoints: endpoint,
      namespace: '',
      requestTimeout: REQUEST_MS,
      sslEnabled: 'tls' in this.params,
      logger: QUIET,
    };
  }

  async producer(topics, { check, endpoint } = {}) {
    const options = {
      ...this.#settings(endpoint),
      topics,
    };
    if (check) options.checker = { check: async message => check(message) };
    return this.#started(new Producer(options));
  }

  async simple(group, topics, { awaitS = 3, endpoint } = {}) {
    const shortest = Number(this.params.shortest_poll_s ?? 0); // RocketMQ's own proxy: 5
    return this.#started(new SimpleConsumer({
      ...this.#settings(endpoint),
      consumerGroup: group,
      subscriptions: subscribed(topics),
      awaitDuration: Math.max(awaitS, shortest) * 1000,
    }));
  }

  async push(group, topics, consume) {
    return this.#started(new PushConsumer({
      ...this.#settings(),
      consumerGroup: group,
      subscriptions: subscribed(topics),
      messageListener: {
        consume: async message => (await consume(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE),
      },
    }));
  }

  async lite(group, topic, consume) {
    return this.#started(new LitePushConsumerImpl({
      ...this.#settings(),
      consumerGroup: group,
      bindTopic: topic,
      messageListener: {
        consume: async message => (await consume(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE),
      },
    }));
  }

  async #started(client) {
    await client.startup();
    this.#clients.push(client);
    return client;
  }

  async close(client) {
    this.#clients.splice(this.#clients.indexOf(client), 1);
    await client.shutdown();
  }

  async closeAll() {
    await Promise.all(this.#clients.splice(0).map(async client => {
      try {
        await client.shutdown();
      } catch (error) {
        this.say('not closed', { client: client.constructor.name, error: errorFacts(error) });
      }
    }));
  }

  // doing

  /** Send and tell the receipt. Throws what the client throws. */
  async sent(producer, message, data = {}, transaction = undefined) {
    message.body = Buffer.from(message.body);
    const receipt = await producer.send(message, transaction);
    this.say('sent', {
      id: receipt.messageId,
      ...bodyFacts(message.body),
      group: message.messageGroup ?? '',
      recall: receipt.recallHandle ?? '',
      ...data,
    });
    return receipt;
  }

  async receive(consumer, { maximum = 16, invisibleS = HOLD_S, by = '' } = {}) {
    const messages = await consumer.receive(maximum, invisibleS * 1000);
    this.say('batch', { by, count: messages.length });
    for (const message of messages) this.saw(message, by);
    return messages;
  }

  async acked(consumer, message) {
    await consumer.ack(message);
    this.say('acked', { id: message.messageId, attempt: message.deliveryAttempt });
  }

  /** Receive `count` messages, acknowledging each unless told otherwise; fewer when patience ends. */
  async receiveUntil(consumer, count, { ack = true, ...options } = {}) {
    const found = [];
    const deadline = Date.now() + PATIENCE_MS;
    while (found.length < count && Date.now() < deadline) {
      for (const message of await this.receive(consumer, options)) {
        found.push(message);
        if (ack) await this.acked(consumer, message);
      }
    }
    return found;
  }

  /** Receive once more, and on until a wall time: what comes is told under `by`, and it should not. */
  async quiet(consumer, { untilMs = 0, by = 'quiet' } = {}) {
    do {
      for (const message of await this.receive(consumer, { by })) await this.acked(consumer, message);
    } while (Date.now() < untilMs);
  }

  /** Wait until it is so; false, and a fact, when patience ends first. */
  async waitFor(condition) {
    const deadline = Date.now() + PATIENCE_MS;
    while (!await condition()) {
      if (Date.now() > deadline) {
        this.say('gave up waiting');
        return false;
      }
      await rest(20);
    }
    return true;
  }
}

function subscribed(topics) {
  return new Map(Object.entries(topics).map(([ topic, filter ]) => [ topic, filter ?? ALL ]));
}

module.exports = { PATIENCE_MS, Run, errorFacts, rest, sql, tags };
