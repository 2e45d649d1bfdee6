-- +goose Up
-- Names are VARBINARY: compared byte for byte, whatever the collation, and
-- stored as they were sent, whatever the connection's character set. Times are UTC.
create table if not exists {{outbox}} (
    shard           tinyint unsigned not null,
    id              bigint           not null auto_increment,
    message_id      varbinary(255)   not null,
    topic           varbinary(255)   not null,
    aggregate       varbinary(255),
    sequence        bigint,
    payload         longblob         not null,
    metadata        mediumblob       not null,
    created_at      datetime(6)      not null,
    attempts        int              not null default 0,
    next_attempt_at datetime(6),
    last_error      varbinary(512),
    primary key (shard, id),
    key {{outbox_id}} (id),
    constraint {{outbox_shard}} check (shard <= 63 or topic = '')
) engine = InnoDB, row_format = dynamic;

-- Posts: one row in front of each shard and one behind the last, which are no
-- messages. A scan of a shard ends at the next row that it can see, and where
-- settled rows are kept for an old read view, that may be far away.
insert ignore into {{outbox}} (shard, id, message_id, topic, payload, metadata, created_at)
select s.n, -1, '', '', '', '{}', utc_timestamp(6)
from (select a.n + 8 * b.n as n
      from (select 0 as n union all select 1 union all select 2 union all select 3
            union all select 4 union all select 5 union all select 6 union all select 7) a,
           (select 0 as n union all select 1 union all select 2 union all select 3
            union all select 4 union all select 5 union all select 6 union all select 7) b
      union all select 64) s;

create table if not exists {{sequences}} (
    topic     varbinary(255) not null,
    aggregate varbinary(255) not null,
    last      bigint         not null,
    primary key (topic, aggregate)
) engine = InnoDB, row_format = dynamic;

create table if not exists {{forwarders}} (
    owner      varbinary(255) not null primary key,
    expires_at datetime(6)    not null
) engine = InnoDB, row_format = dynamic;

create table if not exists {{shards}} (
    shard tinyint unsigned not null primary key,
    owner varbinary(255),
    epoch bigint           not null default 0
) engine = InnoDB, row_format = dynamic;

insert ignore into {{shards}} (shard)
select a.n + 8 * b.n
from (select 0 as n union all select 1 union all select 2 union all select 3
      union all select 4 union all select 5 union all select 6 union all select 7) a,
     (select 0 as n union all select 1 union all select 2 union all select 3
      union all select 4 union all select 5 union all select 6 union all select 7) b;

create table if not exists {{parked}} (
    aggregate varbinary(255) not null primary key,
    parked_at datetime(6)    not null,
    reason    varbinary(512) not null
) engine = InnoDB, row_format = dynamic;

create table if not exists {{dead}} (
    shard      tinyint unsigned not null,
    id         bigint           not null,
    message_id varbinary(255)   not null,
    topic      varbinary(255)   not null,
    aggregate  varbinary(255),
    sequence   bigint,
    payload    longblob         not null,
    metadata   mediumblob       not null,
    created_at datetime(6)      not null,
    attempts   int              not null,
    dead_at    datetime(6)      not null,
    last_error varbinary(512),
    primary key (shard, id),
    key {{dead_aggregate}} (aggregate, id)
) engine = InnoDB, row_format = dynamic;

create table if not exists {{archive}} (
    shard        tinyint unsigned not null,
    id           bigint           not null,
    message_id   varbinary(255)   not null,
    topic        varbinary(255)   not null,
    aggregate    varbinary(255),
    sequence     bigint,
    payload      longblob         not null,
    metadata     mediumblob       not null,
    created_at   datetime(6)      not null,
    delivered_at datetime(6)      not null,
    primary key (shard, id),
    key {{archive_delivered}} (delivered_at)
) engine = InnoDB, row_format = dynamic;

-- requeues rises with each requeue, which puts rows below what readers have
-- read. The row leases is what heartbeats lock.
create table if not exists {{state}} (
    name varbinary(16) not null primary key,
    n    bigint        not null default 0
) engine = InnoDB, row_format = dynamic;

insert ignore into {{state}} (name) values ('leases'), ('requeues');
