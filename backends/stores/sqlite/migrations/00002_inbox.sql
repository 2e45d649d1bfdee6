-- +goose Up
create table {{inbox}} (
    consumer     text not null,
    topic        text not null,
    message_id   text not null,
    processed_at integer not null,
    primary key (consumer, topic, message_id)
);
create index {{inbox_processed}} on {{inbox}} (consumer, processed_at);

-- One row for each aggregate, for ever: it tells what was handled, and is its lock.
create table {{inbox_sequences}} (
    consumer   text not null,
    topic      text not null,
    aggregate  text not null,
    started    integer not null default 1,
    last       integer not null default 0,
    message_id text not null default '',
    buffered   integer not null default 0,
    parked     text not null default '', -- why it was set aside
    parked_at  integer not null default 0,
    moved_at   integer not null,
    primary key (consumer, topic, aggregate)
);
create index {{inbox_parked}} on {{inbox_sequences}} (consumer, topic, aggregate) where parked <> '';

create table {{inbox_buffer}} (
    consumer    text not null,
    topic       text not null,
    aggregate   text not null,
    sequence    integer not null,
    message_id  text not null,
    payload     blob not null,
    metadata    text not null,
    reply_topic text not null,
    stored_at   integer not null,
    primary key (consumer, topic, aggregate, sequence, message_id)
);
create index {{inbox_buffer_stored}} on {{inbox_buffer}} (consumer, stored_at);

create table {{inbox_dead}} (
    id          integer primary key autoincrement,
    consumer    text not null,
    topic       text not null,
    aggregate   text not null,
    sequence    integer not null,
    message_id  text not null,
    payload     blob not null,
    metadata    text not null,
    reply_topic text not null,
    dead_at     integer not null,
    attempts    integer not null default 0,
    reason      text not null,
    last_error  text not null default ''
);
create index {{inbox_dead_aggregate}} on {{inbox_dead}} (consumer, topic, aggregate, sequence);

create table {{inbox_failures}} (
    consumer   text not null,
    topic      text not null,
    message_id text not null,
    aggregate  text not null,
    sequence   integer not null,
    attempts   integer not null,
    failed_at  integer not null,
    last_error text not null,
    primary key (consumer, topic, message_id)
);
create index {{inbox_failures_aggregate}} on {{inbox_failures}} (consumer, topic, aggregate, sequence);
create index {{inbox_failures_failed}} on {{inbox_failures}} (consumer, failed_at);

create table {{inbox_skipped}} (
    consumer  text not null,
    topic     text not null,
    aggregate text not null,
    low       integer not null,
    high      integer not null,
    primary key (consumer, topic, aggregate, low)
);
