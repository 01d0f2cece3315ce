-- reconcile_recurring: makes the definitions that belong to an app what the app declares now: {name: settings, …}.
-- One row for each that was added, changed, restored or retired (active = false: declared no longer), or that could not
-- be: conflict (the name belongs to an operator or to another app), refused (its settings make no sense).
--
-- Untouched are definitions of operators and of other apps; pauses, whoever made them; and what an operator has edited,
-- as long as the declaration is the one that was edited. The last app of a name that starts has the last word.
--
-- Moves nothing. Locks the rows of the app, by name; waits for ticks of them. Raises PQ001 for a bad p_source.
-- Called by tickers when they start.
create or replace function pgqueue.reconcile_recurring(p_source text, p_definitions jsonb)
returns table (name text, change text, reason text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_one   record;
  v_old   pgqueue.recurring_job;
  v_row   pgqueue.recurring_job;
  v_found boolean;
begin
  if p_source is null or length(p_source) not between 1 and 200 or jsonb_typeof(p_definitions) is distinct from 'object' then
    raise exception using errcode = 'PQ001', message = 'the definitions of an app are a JSON object, by name, of an app that has a name';
  end if;
  for v_one in select d.key, d.value from jsonb_each(p_definitions) d order by d.key loop
    name := v_one.key; change := null; reason := null;
    begin
      loop
        select r.* into v_old from pgqueue.recurring_job r where r.name = v_one.key for update;
        v_found := found;
        if v_found and v_old.source is distinct from p_source then
          change := 'conflict';
          reason := case v_old.owner when 'code' then format('it belongs to the app %s', v_old.source) else 'an operator made it' end;
          exit;
        end if;
        exit when v_found and v_old.active and v_old.declared = v_one.value;
        if not v_found then
          v_old.name := v_one.key;
        elsif not v_old.active then
          v_old.cron := null;  -- so that due times count from now
          v_old.every := null;
        end if;
        v_row := pgqueue.apply_recurring(v_old, v_one.value, true);
        v_row.owner := 'code'; v_row.source := p_source; v_row.declared := v_one.value;
        v_row.edited_at := null; v_row.active := true; v_row.created_at := coalesce(v_row.created_at, v_row.changed_at);
        change := case when not v_found then 'added' when not v_old.active then 'restored' else 'changed' end;
        exit when pgqueue.store_recurring(v_row, not v_found);
        change := null;  -- another process of the app was quicker
      end loop;
    exception when sqlstate 'PQ001' or sqlstate 'PQ006' then
      change := 'refused'; reason := sqlerrm;
    end;
    if change is not null then return next; end if;
  end loop;
  reason := null;
  for name in
    update pgqueue.recurring_job r set active = false, version = r.version + 1, planned = false, next_run_at = null,
      changed_at = clock_timestamp()
    where r.source = p_source and r.active and not p_definitions ? r.name
    returning r.name
  loop
    change := 'retired';
    return next;
  end loop;
end
$$;
comment on function pgqueue.reconcile_recurring is 'Makes the recurring jobs that belong to an app what the app declares.';
