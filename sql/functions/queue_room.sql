-- queue_room: how many jobs of a queue with limits may start now; and if none may, when to ask again.
--
-- Claims of such a queue go one at a time: the gate's row is their lock, held to the end of their transaction. So what is
-- counted is exact, under any race, and slots of lost workers come back by themselves when sweep moves their jobs.
-- A claim that is stuck (its worker was stopped while it read the answer) must not stop the others for long: who
-- does not get the lock within 20 ms asks again later.
--
-- Moves nothing. Locks the gate. Raises nothing.
-- Called by claim; not for users.
create or replace function pgqueue.queue_room(p_queue text, p_wanted integer, out room integer, out ask_at timestamptz)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_queue pgqueue.queue%rowtype;
  v_gate  pgqueue.queue_gate%rowtype;
  v_now   timestamptz;
  v_rate  record;
begin
  room := p_wanted;
  select q.* into v_queue from pgqueue.queue q where q.queue = p_queue;
  if v_queue.max_running is null and v_queue.rate is null then
    select g.* into v_gate from pgqueue.queue_gate g where g.queue = p_queue;
  else
    for i in 1 .. 20 loop
      select g.* into v_gate from pgqueue.queue_gate g where g.queue = p_queue for update skip locked;
      exit when found;
      perform pg_sleep(0.001);
    end loop;
    if v_gate.queue is null then
      room := 0;
      ask_at := clock_timestamp() + interval '5 ms';
      return;
    end if;
  end if;
  v_now := clock_timestamp();
  if v_gate.not_before > v_now then
    room := 0;
    ask_at := v_gate.not_before;
    return;
  end if;
  if v_queue.max_running is not null then
    room := least(room, v_queue.max_running - (
      select count(*) from pgqueue.job_live j where j.queue = p_queue and j.holds_slot and j.status = 'running'));
    if room <= 0 then
      -- Whoever finishes a job asks in the same breath; this is for those whose slot came free by other hands.
      room := 0;
      ask_at := v_now + interval '250 ms';
      return;
    end if;
  end if;
  if v_queue.rate is not null then
    select * into v_rate from pgqueue.free_tokens(v_gate.full_at, v_now, v_queue.rate, v_queue.rate_seconds, v_queue.rate_burst);
    room := least(room, greatest(v_rate.tokens, 0));
    if room = 0 then ask_at := v_rate.next_at; end if;
  end if;
end
$$;
comment on function pgqueue.queue_room is 'How many jobs of a queue with limits may start now. Not for users.';
