-- +goose Up
create table {{outbox}} (
    -- Ids are never handed out again, also not after the last row is gone.
    id              integer primary key autoincrement,
    shard           integer not null check (shard between 0 and 63),
    message_id      text    not null,
    topic           text    not null,
    aggregate       text,
    sequence        integer,
    payload         blob    not null,
    metadata        text    not null,
    created_at      integer not null, -- microseconds since 1970, as all times here
    attempts        integer not null default 0,
    next_attempt_at integer,
    last_error      text
);
create index {{outbox_shard}} on {{outbox}} (shard, id);
create index {{outbox_delayed}} on {{outbox}} (next_attempt_at) where next_attempt_at is not null;

create table {{sequences}} (
    topic     text    not null,
    aggregate text    not null,
    last      integer not null,
    primary key (topic, aggregate)
) without rowid;

create table {{forwarders}} (
    owner      text    primary key,
    expires_at integer not null
) without rowid;

create table {{shards}} (
    shard integer primary key check (shard between 0 and 63),
    owner text,
    epoch integer not null default 0
);
insert into {{shards}} (shard)
with recursive s(n) as (select 0 union all select n + 1 from s where n < 63) select n from s;

create table {{parked}} (
    aggregate text    primary key,
    parked_at integer not null,
    reason    text    not null
) without rowid;

create table {{dead}} (
    id         integer primary key,
    shard      integer not null,
    message_id text    not null,
    topic      text    not null,
    aggregate  text,
    sequence   integer,
    payload    blob    not null,
    metadata   text    not null,
    created_at integer not null,
    attempts   integer not null,
    dead_at    integer not null,
    last_error text
);
create index {{dead_aggregate}} on {{dead}} (aggregate, id);

create table {{archive}} (
    id           integer primary key,
    shard        integer not null,
    message_id   text    not null,
    topic        text    not null,
    aggregate    text,
    sequence     integer,
    payload      blob    not null,
    metadata     text    not null,
    created_at   integer not null,
    delivered_at integer not null
);
create index {{archive_delivered}} on {{archive}} (delivered_at);

-- Rises with each requeue, which puts rows below what readers have read.
create table {{changes}} (n integer not null);
insert into {{changes}} values (0);
