//! The driver with the newest published client.

extern crate rocketmq_newest as rocketmq;

mod driver;
mod run;
mod scenarios;
mod transactions;

/// What the versions of the client call differently.
mod sdk {
    use std::time::Duration;

    use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
    use rocketmq::error::ClientError;
    use rocketmq::model::common::{FilterExpression, SendReceipt};
    use rocketmq::model::message::{MessageBuilder, MessageView};
    use rocketmq::{Producer, SimpleConsumer};

    pub async fn producer(option: ProducerOption, client: ClientOption) -> Result<Producer, ClientError> {
        let mut producer = Producer::new(option, client)?;
        producer.start().await?;
        Ok(producer)
    }

    pub async fn consumer(
        option: SimpleConsumerOption,
        client: ClientOption,
    ) -> Result<SimpleConsumer, ClientError> {
        let mut consumer = SimpleConsumer::new(option, client)?;
        consumer.start().await?;
        Ok(consumer)
    }

    pub async fn send(producer: &Producer, message: MessageBuilder) -> Result<SendReceipt, ClientError> {
        producer.send(message.build()?).await
    }

    pub async fn send_batch(
        producer: &Producer,
        messages: Vec<MessageBuilder>,
    ) -> Result<Vec<SendReceipt>, ClientError> {
        let built: Result<Vec<_>, _> = messages.into_iter().map(MessageBuilder::build).collect();
        producer.batch_send(built?).await
    }

    pub async fn receive(
        consumer: &SimpleConsumer,
        topic: &str,
        filter: &FilterExpression,
        maximum: i32,
        invisible: Duration,
    ) -> Result<Vec<MessageView>, ClientError> {
        consumer.receive_with(topic, filter, maximum, invisible).await
    }

    pub async fn end_producer(producer: Producer) -> Result<(), ClientError> {
        producer.shutdown().await
    }

    pub async fn end_consumer(consumer: SimpleConsumer) -> Result<(), ClientError> {
        consumer.shutdown().await
    }
}

fn main() {
    driver::main(&[scenarios::ALL, scenarios::NEWEST, transactions::ALL]);
}
